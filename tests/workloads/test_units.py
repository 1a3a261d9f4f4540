from __future__ import annotations

import torch
from torch import nn
from torchvision import models

from workloads.units import described, repeated_blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))


def kinds(model: nn.Module) -> list[str]:
    return [type(unit).__name__ for unit in repeated_blocks(model)]


def test_repeated_blocks_of_a_class_are_units() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Block(), Block(), nn.Linear(2, 2))
    assert repeated_blocks(model) == [model[1], model[2]]


def test_a_block_that_there_is_one_of_is_none() -> None:
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), Block(), nn.Linear(2, 2))) == []


def test_towers_of_blocks_are_stacks_and_their_blocks_are_units() -> None:
    assert kinds(nn.Sequential(Tower(), Tower())) == ["Block"] * 6


def test_containers_and_layers_are_no_units() -> None:
    pair = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(4)]
    assert repeated_blocks(nn.Sequential(*pair)) == []


def test_a_block_that_stands_twice_is_one() -> None:
    block = Block()
    assert repeated_blocks(nn.Sequential(block, block, Block())) != [block, block]


def test_units_of_known_networks() -> None:
    with torch.device("meta"):
        assert kinds(models.resnet18()) == ["BasicBlock"] * 8
        assert kinds(models.vit_b_16()) == ["EncoderBlock"] * 12
        assert set(kinds(models.efficientnet_b0())) == {"MBConv"}
        assert kinds(models.vgg11()) == []


def test_units_in_words_name_the_ends_and_the_share_of_parameters() -> None:
    model = nn.Sequential(Block(), Block(), Block(), nn.Linear(17, 3, bias=False), nn.Linear(2, 1))
    # A block has three layers of 2 x 2 and a bias of 2: 18; the others 51 and 3.
    words = described(model, repeated_blocks(model))
    assert words == "3 x Block (0, ..., 2), with 50% of the parameters"
    assert described(model, []) == "none"
