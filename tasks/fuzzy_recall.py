"""Fuzzy in-context recall: keys and values of several tokens (MAD's "fuzzy-in-context-recall")."""

from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, TaskRuleError, require, require_targets
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
        self.kinds = ["key"] * self.num_keys + ["value"] * self.num_values + ["pad"]  # of each token
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
        shortest_key = 1 if split == "train" else self.k_motif_size
        longest_pair = self.k_motif_size + self.v_motif_size
        shortest_pair = shortest_key + 1
        # Slots start below seq_len - |probe| - longest_pair, so no row has more than this.
        num_slots = -(-(self.seq_len - shortest_pair - longest_pair) // shortest_pair)

        draw_keys = partial(_draw_motifs, rng, range(self.num_keys), shortest_key, self.k_motif_size)
        draw_values = partial(_draw_motifs, rng, range(self.num_keys, self.pad_token), 1, self.v_motif_size)
        probe = *draw_keys((num_rows, 1)), *draw_values((num_rows, 1))
        probe_len = probe[1] + probe[3]
        insert_from = rng.integers(self.seq_len - 2 * probe_len)
        pairs = *draw_keys((num_rows, num_slots)), *draw_values((num_rows, num_slots))
        # From here on the probe is one more slot, the last.
        keys, key_len, values, value_len = (np.concatenate(both, axis=-1) for both in zip(pairs, probe, strict=True))
        rows, slots = np.arange(num_rows)[:, None], np.arange(num_slots + 1)
        codes = _encode(keys, key_len, self.vocab_size)
        first, is_probe = first_use(codes), codes == codes[:, -1:]
        valued = np.where(is_probe, num_slots, first)
        values, value_len = values[:, rows, valued], value_len[rows, valued]

        # The slot before which the probe is inserted; behind all of them, where none fits, if it has been shown.
        starts = np.cumsum(key_len + value_len, axis=1) - (key_len + value_len)
        insert_at = np.sum(starts[:, :-1] < insert_from, axis=1, keepdims=True)
        insert_at[first[:, -1:] < insert_at] = num_slots
        repeated = (first < slots) | (is_probe & (slots >= insert_at))

        # The slots in their order, with the probe among them and at the end.
        number = np.arange(num_slots + 2)
        order = np.where((number == insert_at) | (number > num_slots), num_slots, number - (number > insert_at))
        keys, key_len, values, value_len, repeated = (
            of_slots[..., rows, order] for of_slots in (keys, key_len, values, value_len, repeated)
        )
        repeated[rows, insert_at], repeated[:, -1] = False, True
        pair_len = key_len + value_len
        starts = np.cumsum(pair_len, axis=1) - pair_len
        used = starts < self.seq_len - probe_len - longest_pair
        used[:, -1] = True
        starts += self.seq_len + 1 - np.sum(pair_len * used, axis=1, keepdims=True)  # behind the pads
        starts[:, -1:] = self.seq_len + 1 - probe_len

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

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        last_target = targets[:, -1:]
        is_value = (last_target >= self.num_keys) & (last_target < self.pad_token)
        rule = f"the last target ends the probe's value ({self.num_keys}..{self.pad_token - 1})"
        require(is_value, "targets", rule, np.array([self.seq_len - 1]))
        tokens = np.concatenate([inputs, last_target], axis=1)
        is_answer = np.zeros(tokens.shape, dtype=bool)
        for row, its_tokens in enumerate(tokens.tolist()):
            is_answer[row, self._answers(its_tokens, row, split)] = True
        if split == "train":
            require_targets(targets, tokens[:, 1:], "the next token")
        else:
            expected = np.where(is_answer, tokens, IGNORE_INDEX)[:, 1:]
            require_targets(targets, expected, "the values of repeated keys and of the probe, -100 elsewhere")

    def _answers(self, tokens: list[int], row: int, split: Split) -> list[int]:
        """The positions of the values of repeated keys and of the probe; checks `tokens`, all of row `row`, before."""

        def wrong(position: int, rule: str) -> TaskRuleError:
            return TaskRuleError("inputs", row, f"position {position}: {rule}")

        motifs = []  # kind, position of the first token, tokens
        position = 0
        for kind, run in groupby(tokens, self.kinds.__getitem__):
            motifs.append((kind, position, tuple(run)))
            position += len(motifs[-1][2])
        (first, start, pads), *motifs = motifs
        if first != "pad":
            raise wrong(start, "the first position holds a pad")
        if motifs[0][0] != "key":
            raise wrong(len(pads), "a key follows the pads")
        for kind, start, motif in motifs:
            if kind == "pad":
                raise wrong(start, f"pads ({self.pad_token}) appear only on the left")
            most = self.k_motif_size if kind == "key" else self.v_motif_size
            if len(motif) > most:
                raise wrong(start + most, f"a {kind} has at most {kind[0]}_motif_size={most} tokens")
            if len(motif) < most and kind == "key" and split != "train":
                raise wrong(start, f"a {split} key has k_motif_size={most} tokens")
            if len(set(motif)) < len(motif):
                repeat = next(i for i, token in enumerate(motif) if token in motif[:i])
                raise wrong(start + repeat, "the tokens of a motif are distinct")

        values: dict[tuple[int, ...], tuple[int, ...]] = {}  # by their keys
        answers: list[int] = []
        pairs = list(zip(motifs[::2], motifs[1::2], strict=True))
        for number, ((_, key_start, key), (_, value_start, value)) in enumerate(pairs, start=1):
            if key in values or number == len(pairs):
                answers += range(value_start, value_start + len(value))
            if values.setdefault(key, value) != value:
                raise wrong(key_start, "a key keeps its first value throughout its row")

        # Pairs follow one another as long as one of maximal length leaves room for the probe behind it.
        room = self.k_motif_size + self.v_motif_size + 1
        if len(pads) > room:
            raise wrong(0, "context pairs continue while a longest pair and the probe still fit")
        *_, last_start, probe_start = (start for _, start, _ in motifs[::2])
        if last_start - len(pads) >= probe_start - room:
            raise wrong(last_start, "no context pair starts too late for the probe to fit")
        return answers


def _draw_motifs(
    rng: np.random.Generator, tokens: range, shortest: int, longest: int, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Motifs of distinct tokens, `[longest, *shape]`, and their lengths `[*shape]`; later tokens are unused."""
    lengths = rng.integers(shortest, longest + 1, size=shape)
    motifs = np.empty((longest, *shape), dtype=np.int64)
    rising: list[np.ndarray] = []  # the tokens drawn so far, sorted
    for i in range(longest):
        # A uniform token among those not drawn yet: skip the earlier ones in rising order.
        token = rng.integers(len(tokens) - i, size=shape)
        for earlier in rising:
            token += token >= earlier
        motifs[i] = token + tokens.start
        for j, earlier in enumerate(rising):
            rising[j], token = np.minimum(earlier, token), np.maximum(earlier, token)
        rising.append(token)
    return motifs, lengths


def _encode(motifs: np.ndarray, lengths: np.ndarray, vocab_size: int) -> np.ndarray:
    """One integer per motif, `[*shape]`, from tokens `[M, *shape]`: its tokens + 1 as digits in base vocab_size.

    Only the first `lengths` (`[*shape]`) tokens count. Two motifs have the same code only if they are equal.
    """
    numbers = np.zeros(lengths.shape, dtype=np.int64)
    for i, token in enumerate(motifs):
        numbers += np.where(lengths > i, (token + 1) * vocab_size**i, 0)
    return numbers
