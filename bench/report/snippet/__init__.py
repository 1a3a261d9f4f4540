"""The torch program that trains as one case did: text, made from the case alone."""
