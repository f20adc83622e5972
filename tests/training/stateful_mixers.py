"""Mixers that vmap refuses, that draw random numbers or change buffers while they train, or that fail."""

import torch
import torch.nn.functional as F
from tiny_training import VOCAB, WIDTH
from torch import nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel


class Scan(torch.autograd.Function):
    """A running sum as an fla layer would compute it: no rule for vmap, and kernels that want plain tensors."""

    @staticmethod
    def forward(ctx, x, decay):
        ctx.save_for_backward(x, decay)
        assert x.data_ptr() and x.is_contiguous()
        return (x * decay).cumsum(dim=1)

    @staticmethod
    def backward(ctx, gradient):
        x, decay = ctx.saved_tensors
        later = gradient.flip(1).cumsum(dim=1).flip(1)
        return later * decay, (later * x).sum(dim=(0, 1))


class LikeFla(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.proj, self.decay = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x):
        return Scan.apply(self.proj(x).contiguous(), self.decay)


class Recurrent(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class Dropped(SequenceMixer):
    def __init__(self, p=0.5):
        super().__init__()
        self.proj, self.p = nn.Linear(WIDTH, WIDTH), p

    def forward(self, x):
        return F.dropout(self.proj(x).cumsum(dim=1), self.p, self.training)


REFUSED = (LikeFla, Recurrent, Dropped)


class Normed(SequenceMixer):
    """Statistics over batch and time, and how often they were taken; vmap does both if they are each replica's own."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.proj, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=momentum)

    def forward(self, x):
        return self.norm(self.proj(x).flatten(0, 1)).view_as(x)


class NormedAndDropped(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(Normed(), Dropped(0.1), LikeFla())

    def forward(self, x):
        return self.parts(x)


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH + 1, WIDTH)

    def forward(self, x):
        return self.proj(x.relu())


def model_with(mixer, vocab=VOCAB, **options):
    return lambda: LanguageModel(vocab, WIDTH, n_layers=2, make_mixer=mixer, **options)


def line_of(forward):
    """Where the only line of this function stands."""
    return f"{__file__}:{forward.__code__.co_firstlineno + 1})"
