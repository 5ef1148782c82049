"""Names of modules as people call them."""

from __future__ import annotations

from torch import nn

from oomdoctor.trial.profile.marks import named_modules


def _names(model: nn.Module) -> list[str]:
    return [name for _, name in named_modules(model)]


def test_positions_in_a_list_are_stars() -> None:
    """Layers of one list have one name, whatever is in it and however many there are."""
    for count in (1, 3):
        model = nn.ModuleDict({"encoder": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(count))})
        assert set(_names(model)) == {"", "encoder", "encoder.*", "encoder.*.*"}


def test_a_sequence_of_unlike_modules_keeps_its_numbers() -> None:
    """In a `Sequential` of different modules each is told from the others; one of like modules is a list."""
    unlike = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    alike = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    assert _names(unlike) == ["", "0", "1", "2"]
    assert _names(alike) == ["", "*", "*"]


def test_numbers_at_the_end_of_a_name_are_positions_only_in_lists() -> None:
    """`encoder_layer_0` of a list is a position, `conv1` of a module is a name."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Linear(2, 2), nn.Linear(2, 2)

    layers = nn.Sequential()
    for number in range(2):
        layers.add_module(f"encoder_layer_{number}", Block())

    assert _names(layers)[:4] == ["", "encoder_layer_*", "encoder_layer_*.conv1", "encoder_layer_*.conv2"]


def test_wrappers_add_nothing() -> None:
    """What `torch.compile` and `DataParallel` put around a module leaves its name as it was."""
    compiled = nn.Module()
    compiled._orig_mod = nn.Linear(2, 2)  # as `torch.compile` does, which takes ten seconds to import
    model = nn.ModuleDict({"a": compiled})

    assert _names(nn.DataParallel(model)) == ["", "", "a", "a"]


def test_a_shared_module_has_its_first_name() -> None:
    """A module in two places is one module."""
    shared = nn.Linear(2, 2)

    assert _names(nn.ModuleDict({"first": shared, "second": shared})) == ["", "first"]
