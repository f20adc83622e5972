"""The labels of a figure, made shorter where there is little room, and still different."""

from collections.abc import Sequence

from mixerlab.records.names import parts_of

_MOST = 500  # characters of any label: a figure is drawn whatever a record holds


def shortened(text: str, most: int) -> str:
    """The text, or its beginning if it would not fit."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def told_apart(labels: Sequence[str], most: int) -> list[str]:
    """The labels in at most `most` characters: their beginnings, or their ends if some of them begin alike.

    They stay longer where neither tells them apart.
    """
    ends = [label if len(label) <= most else f"…{label[1 - most :]}" for label in labels]
    for cut in ([shortened(label, most) for label in labels], ends):
        if len(set(cut)) == len(set(labels)):
            return cut
    return [shortened(label, _MOST) for label in labels]


def without_shared(columns: Sequence[str]) -> tuple[list[str], str]:
    """Names of columns of tables without the `key=value` that all of them have, and these.

    `["attn, d_model=64, epochs=9", "gdn, d_model=32, epochs=9"]` become `["attn, d_model=64", "gdn, d_model=32"]` and
    `"epochs=9"`. A single column keeps all.
    """
    parts = [parts_of(column) for column in columns]
    if len(parts) < 2:
        return list(columns), ""
    shared = [part for part in parts[0][1:] if all(part in others[1:] for others in parts)]
    kept = [", ".join([first, *(part for part in others if part not in shared)]) for first, *others in parts]
    return kept, ", ".join(shared)
