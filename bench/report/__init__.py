"""From rows to pages that people read. Never imports torch."""
