"""State tracking: the running product of a word over a finite group."""

from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, require, require_targets

# Name -> (points that its elements permute, whether only even permutations belong to it).
GROUPS = {"Z2": (2, False), "S3": (3, False), "A5": (5, True), "S5": (5, False)}


@dataclass(kw_only=True, eq=False)
class StateTracking(Task):
    """A word of group elements g_1 ... g_T; at each position the model must give the product g_1 g_2 ... g_t.

    `group` is Z2 (parity: the product says whether the number of ones so far is odd), S3, A5 or S5. An element is a
    permutation p, written as the tuple (p(0), p(1), ...); its token id is its place among the group's elements in
    lexicographic order, so that 0 is the identity. A product is (p q)(i) = p(q(i)); with q(p(i)) it would be the same
    problem, each element renamed to its inverse. Elements are uniform and independent. In S3, where 1 is (0, 2, 1),
    2 is (1, 0, 2), 3 is (1, 2, 0), 4 is (2, 0, 1) and 5 is (2, 1, 0):

        inputs     3   1   5   0
        targets    3   2   4   4

    Every position is scored, and all splits have the same form. The product is uniform at every position: a guess is
    right with probability 1 / vocab_size, and only the first target can be read off its own input.

    Source: the word problems of Merrill, Petty and Sabharwal (2024), "The Illusion of State in State-Space Models",
    arXiv:2404.08819, section 6, which tags each position with the product so far and gives each element a token.
    """

    group: str

    def __post_init__(self):
        super().__post_init__()
        if self.group not in GROUPS:
            raise ValueError(f"task.group={self.group!r}: choose {', '.join(GROUPS)}")
        self.product = multiplication_table(self.group)
        order = len(self.product)
        wanted = f"must be {order}, the number of elements of task.group={self.group}"
        self.demand(self.vocab_size == order, "vocab_size", wanted)

    @property
    def chance(self) -> float:
        return 1 / self.vocab_size

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        inputs = rng.integers(self.vocab_size, size=(num_rows, self.seq_len))
        targets = np.empty_like(inputs)
        targets[:, 0] = inputs[:, 0]
        for t in range(1, self.seq_len):
            targets[:, t] = self.product[targets[:, t - 1], inputs[:, t]]
        return inputs, targets

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        require(targets != IGNORE_INDEX, "targets", "every position is scored")
        # Each target from the one before it: up to the first wrong target of a row, those are the products.
        expected = inputs.copy()
        expected[:, 1:] = self.product[targets[:, :-1], inputs[:, 1:]]
        require_targets(targets, expected, f"the product of the first elements, in {self.group}")


def elements(group: str) -> list[tuple[int, ...]]:
    """The permutations of a group, in lexicographic order: the element of token id i is the i-th."""
    points, only_even = GROUPS[group]
    every = permutations(range(points))
    return [p for p in every if not only_even or sum(a > b for a, b in combinations(p, 2)) % 2 == 0]


def multiplication_table(group: str) -> np.ndarray:
    """Token ids of products: entry [p, q] is p q, with (p q)(i) = p(q(i)); int64 `[order, order]`."""
    members = elements(group)
    token_of = {p: token for token, p in enumerate(members)}
    return np.array([[token_of[tuple(p[i] for i in q)] for q in members] for p in members])
