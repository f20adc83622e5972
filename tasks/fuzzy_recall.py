"""Fuzzy in-context recall: keys and values of several tokens (MAD's "fuzzy-in-context-recall")."""

from dataclasses import dataclass

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, require, require_targets
from mixerlab.tasks.pairs import first_use

# Up to this number of motifs, their codes (see `_encode`) are exact in float64, and code times slot fits in int64.
_MAX_CODES = 2**40


@dataclass(kw_only=True, eq=False)
class FuzzyRecall(Task):
    """In-context recall whose keys and values are motifs: tuples of distinct tokens of varying length.

    The last token id is the pad. Of the S = vocab_size - 1 other tokens, keys use the first S // 2 and values the
    rest. Key lengths are uniform in 1..k_motif_size in train and always k_motif_size in val and test; value lengths
    are uniform in 1..v_motif_size.

    A probe pair is drawn first. Then pairs follow one another; a key keeps the value of its first use. The probe pair
    is inserted at the first slot that starts at or after a uniform place p, unless it has already been shown. Pairs
    stop when the probe and a pair of maximal length might no longer fit; then the probe pair ends the sequence. (If p
    is late, the probe may never have been shown before, and no model can know the answer.) Pads fill the left up to
    T = seq_len. With vocab_size=10 (keys of 0-3, values of 4-8, pad 9), motif sizes of 2 and seq_len=16, a test row:

        inputs          9  9  9  1  3  5  4  0  2  7  1  3  5  4  0  2
        test targets    .  .  .  .  .  .  .  .  .  .  .  5  4  .  .  7     values of repeated keys; . is -100

    Train targets are the next token everywhere. Source: MAD (Poli et al. 2024) as mad-lab generates it.
    """

    madlab_code = "FR"

    k_motif_size: int
    v_motif_size: int

    def __post_init__(self):
        super().__post_init__()
        self.require_int("k_motif_size", 1)
        self.require_int("v_motif_size", 1)
        self.pad_token = self.vocab_size - 1
        self.num_keys = self.pad_token // 2  # tokens that keys are made of
        self.num_values = self.pad_token - self.num_keys
        needed = 1 + max(2 * max(self.k_motif_size, 2), 2 * max(self.v_motif_size, 2) - 1)
        self.demand(
            self.vocab_size >= needed, "vocab_size", f"must be at least {needed}, for motifs of distinct tokens"
        )
        if self.vocab_size ** max(self.k_motif_size, self.v_motif_size) > _MAX_CODES:
            raise ValueError(
                f"task.k_motif_size={self.k_motif_size}, task.v_motif_size={self.v_motif_size}: with task.vocab_size="
                f"{self.vocab_size} there are more than 2^40 motifs: reduce the motif sizes or the vocabulary"
            )
        two_pairs = 2 * (self.k_motif_size + self.v_motif_size)
        longer = f"must be above 2 * (k_motif_size + v_motif_size) = {two_pairs}"
        self.demand(self.seq_len > two_pairs, "seq_len", longer)

    @property
    def chance(self) -> float:
        return 1 / self.num_values

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        # The motifs of a slot do not depend on where the slot starts. So all slots that could fit are drawn at once.
        # Cumulative sums then give the start of each slot, the slot of the probe and the end of the row.
        smallest_key = 1 if split == "train" else self.k_motif_size
        largest_pair = self.k_motif_size + self.v_motif_size
        smallest_pair = smallest_key + 1
        # Slots start below seq_len - |probe| - largest_pair, so no row has more than this.
        num_slots = -(-(self.seq_len - smallest_pair - largest_pair) // smallest_pair)

        probe_key, probe_key_len = self._draw_motifs(rng, (num_rows, 1), smallest_key, self.k_motif_size, 0)
        probe_value, probe_value_len = self._draw_motifs(rng, (num_rows, 1), 1, self.v_motif_size, self.num_keys)
        probe_len = probe_key_len + probe_value_len
        insert_from = rng.integers(self.seq_len - 2 * probe_len)
        context_end = self.seq_len - probe_len - largest_pair  # context slots start below it

        shape = (num_rows, num_slots)
        keys, key_len = self._draw_motifs(rng, shape, smallest_key, self.k_motif_size, 0)
        values, value_len = self._draw_motifs(rng, shape, 1, self.v_motif_size, self.num_keys)
        codes = _encode(keys, key_len, self.vocab_size)
        first = first_use(codes)
        is_probe = codes == _encode(probe_key, probe_key_len, self.vocab_size)
        values = np.where(is_probe, probe_value, np.take_along_axis(values, first[None], axis=2))
        value_len = np.where(is_probe, probe_value_len, np.take_along_axis(value_len, first, axis=1))

        ends = np.cumsum(key_len + value_len, axis=1)
        starts = np.concatenate([np.zeros((num_rows, 1), dtype=ends.dtype), ends], axis=1)
        slots = np.arange(num_slots + 1)
        insert_slot = np.sum(starts < insert_from, axis=1, keepdims=True)
        insert_slot = np.minimum(insert_slot, num_slots)
        insert_start = np.take_along_axis(starts, insert_slot, axis=1)
        shown_before = np.any(is_probe & (slots[:-1] < insert_slot), axis=1, keepdims=True)
        inserted = (insert_start < context_end) & ~shown_before
        starts += np.where(inserted & (slots >= insert_slot), probe_len, 0)
        used = starts[:, :-1] < context_end
        repeated = (first < slots[:-1]) | (is_probe & inserted & (slots[:-1] >= insert_slot))
        length = np.sum((key_len + value_len) * used, axis=1, keepdims=True) + probe_len * inserted

        # The pairs of a row: its slots, then the probe where it was inserted, then the probe at the end.
        pads = self.seq_len + 1 - probe_len - length
        starts = pads + np.concatenate([starts[:, :-1], insert_start, length], axis=1)
        always = np.ones_like(inserted)
        used = np.concatenate([used, inserted, always], axis=1)
        repeated = np.concatenate([repeated, ~always, always], axis=1)
        keys, key_len, values, value_len = (
            np.concatenate([slot, probe, probe], axis=-1)
            for slot, probe in (
                (keys, probe_key),
                (key_len, probe_key_len),
                (values, probe_value),
                (value_len, probe_value_len),
            )
        )
        tokens = np.full((num_rows, self.seq_len + 1), self.pad_token, dtype=np.int64)
        scored = np.zeros(tokens.shape, dtype=bool)
        for i, token in enumerate(keys):
            row, pair = np.nonzero(used & (key_len > i))
            tokens[row, starts[row, pair] + i] = token[row, pair]
        for i, token in enumerate(values):
            row, pair = np.nonzero(used & (value_len > i))
            position = starts[row, pair] + key_len[row, pair] + i
            tokens[row, position] = token[row, pair]
            scored[row, position] = repeated[row, pair]
        targets = tokens if split == "train" else np.where(scored, tokens, IGNORE_INDEX)
        return tokens[:, :-1], targets[:, 1:]

    def _draw_motifs(
        self, rng: np.random.Generator, shape: tuple[int, int], smallest: int, largest: int, first_token: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Motifs of distinct tokens, `[largest, *shape]`, and their lengths `[*shape]`; later tokens are unused."""
        alphabet = self.num_keys if first_token == 0 else self.num_values
        lengths = rng.integers(smallest, largest + 1, size=shape)
        motifs = np.empty((largest, *shape), dtype=np.int64)
        rising: list[np.ndarray] = []  # the tokens drawn so far, sorted
        for i in range(largest):
            # A uniform token among those not drawn yet: skip the earlier ones in rising order.
            token = rng.integers(alphabet - i, size=shape)
            for earlier in rising:
                token += token >= earlier
            motifs[i] = token + first_token
            for j, earlier in enumerate(rising):
                rising[j], token = np.minimum(earlier, token), np.maximum(earlier, token)
            rising.append(token)
        return motifs, lengths

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        last_target = targets[:, -1:]
        require(
            (last_target >= self.num_keys) & (last_target < self.pad_token),
            "targets",
            f"the last target ends the probe's value ({self.num_keys}..{self.pad_token - 1})",
            np.array([self.seq_len - 1]),
        )
        tokens = np.concatenate([inputs, last_target], axis=1)
        pairs = _Pairs(self, tokens)
        pairs.check_motifs(split)
        pairs.check_ends()
        first = first_use(pairs.key_code)
        stored = np.take_along_axis(pairs.value_code, first, axis=1)
        require(
            pairs.value_code == stored,
            "inputs",
            "a key keeps its first value throughout its row",
            pairs.start,
        )
        if split == "train":
            require_targets(targets, tokens[:, 1:], "the next token")
            return
        slots = np.arange(first.shape[1])
        is_scored = (first < slots) | (slots == pairs.count - 1)
        is_scored = np.take_along_axis(is_scored, pairs.index, axis=1) & pairs.is_value
        expected = np.where(is_scored, tokens, IGNORE_INDEX)[:, 1:]
        require_targets(targets, expected, "the values of repeated keys and of the probe, -100 elsewhere")


class _Pairs:
    """The pairs of fuzzy recall rows, parsed from their tokens `[N, seq_len + 1]`.

    Attributes of each pair, `[N, P]`, where P is the largest number of pairs (zero after a row's last pair):
        start: position of the pair's first token.
        key_len, value_len: number of tokens of each motif.
        key_code, value_code: one integer per motif, see `_encode`.
    Attributes of each token, `[N, seq_len + 1]`:
        is_key, is_value: whether the token is part of a key or of a value (a pad is neither).
        index: the pair that the token belongs to (0 for a pad).
    Attribute of each row:
        count: the number of pairs, `[N, 1]`.
    """

    def __init__(self, task: FuzzyRecall, tokens: np.ndarray):
        self.task = task
        self.tokens = tokens
        is_pad = tokens == task.pad_token
        self.is_key = tokens < task.num_keys
        self.is_value = ~self.is_key & ~is_pad
        require(
            ~is_pad[:, 1:] | is_pad[:, :-1],
            "inputs",
            f"pads ({task.pad_token}) appear only on the left",
            np.arange(1, tokens.shape[1]),
        )
        require(~self.is_value[:, 1:] | ~is_pad[:, :-1], "inputs", "a key follows the pads")
        require(is_pad[:, 0], "inputs", "the first position holds a pad")

        opens = np.zeros_like(is_pad)
        opens[:, 1:] = self.is_key[:, 1:] & ~self.is_key[:, :-1]
        self.index = np.maximum(np.cumsum(opens, axis=1) - 1, 0)
        self.count = self.index[:, -1:] + 1
        kind = self.is_key + 2 * self.is_value
        changes = np.zeros_like(is_pad)
        changes[:, 1:] = kind[:, 1:] != kind[:, :-1]
        position = np.arange(tokens.shape[1])
        self.motif_start = np.maximum.accumulate(np.where(changes, position, 0), axis=1)
        self.offset = np.where(is_pad, 0, position - self.motif_start)  # of a token in its motif

        self.start = self._sum_by_pair(np.where(opens, position, 0))
        self.key_len = self._sum_by_pair(self.is_key)
        self.value_len = self._sum_by_pair(self.is_value)

    def _sum_by_pair(self, weights: np.ndarray) -> np.ndarray:
        """Sums integers `[N, seq_len + 1]` over the tokens of each pair: `[N, P]`, exact below 2^53."""
        num_rows, num_pairs = len(self.tokens), int(self.count.max())
        cell = self.index + num_pairs * np.arange(num_rows)[:, None]
        sums = np.bincount(cell.ravel(), weights.ravel(), minlength=num_rows * num_pairs)
        return sums.astype(np.int64).reshape(num_rows, num_pairs)

    def check_motifs(self, split: Split) -> None:
        """Checks that motifs are short enough and their tokens distinct; then sets the codes, which need that."""
        task = self.task
        require(
            ~self.is_key | (self.offset < task.k_motif_size),
            "inputs",
            f"a key has at most k_motif_size={task.k_motif_size} tokens",
        )
        require(
            ~self.is_value | (self.offset < task.v_motif_size),
            "inputs",
            f"a value has at most v_motif_size={task.v_motif_size} tokens",
        )
        exists = np.arange(self.key_len.shape[1]) < self.count
        if split != "train":
            require(
                ~exists | (self.key_len == task.k_motif_size),
                "inputs",
                f"a {split} key has k_motif_size={task.k_motif_size} tokens",
                self.start,
            )
        for distance in range(1, max(task.k_motif_size, task.v_motif_size)):
            same_motif = self.motif_start[:, distance:] == self.motif_start[:, :-distance]
            same_token = self.tokens[:, distance:] == self.tokens[:, :-distance]
            is_motif = self.is_key[:, distance:] | self.is_value[:, distance:]
            require(
                ~(same_motif & same_token & is_motif),
                "inputs",
                "the tokens of a motif are distinct",
                np.arange(distance, self.tokens.shape[1]),
            )
        digit = (self.tokens + 1) * task.vocab_size**self.offset
        self.key_code = self._sum_by_pair(np.where(self.is_key, digit, 0))
        self.value_code = self._sum_by_pair(np.where(self.is_value, digit, 0))

    def check_ends(self) -> None:
        """Checks that context pairs fill the row until a pair of maximal length and the probe might not fit."""
        task = self.task
        last = self.count - 1
        probe_len = np.take_along_axis(self.key_len + self.value_len, last, axis=1)[:, 0]
        probe_start = np.take_along_axis(self.start, last, axis=1)[:, 0]
        pads = self.start[:, 0]
        context_end = task.seq_len - probe_len - task.k_motif_size - task.v_motif_size
        require(
            probe_start - pads >= context_end,
            "inputs",
            "context pairs continue while a longest pair and the probe still fit",
        )
        before = np.take_along_axis(self.start, np.maximum(last - 1, 0), axis=1)[:, 0]
        require(before - pads < context_end, "inputs", "no context pair starts too late for the probe to fit")


def _encode(motifs: np.ndarray, lengths: np.ndarray, vocab_size: int) -> np.ndarray:
    """One integer per motif, `[*shape]`, from tokens `[M, *shape]`: its tokens + 1 as digits in base vocab_size.

    Only the first `lengths` (`[*shape]`) tokens count. Two motifs have the same code only if they are equal.
    """
    numbers = np.zeros(lengths.shape, dtype=np.int64)
    for i, token in enumerate(motifs):
        numbers += np.where(lengths > i, (token + 1) * vocab_size**i, 0)
    return numbers
