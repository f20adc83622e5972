"""Mixers that see the future or mix rows, each by a flaw that is named, and populations of them."""

import torch
from torch import nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.population import Population

VOCAB, WIDTH, LENGTH = 8, 16, 50


class Flawed(SequenceMixer):
    """A causal mean over the past, and something else."""

    def __init__(self, flaw="", d_model=WIDTH):
        super().__init__()
        self.flaw = flaw
        self.linear = nn.Linear(d_model, d_model, bias=False)
        self.gate, self.positive = nn.Parameter(torch.zeros(d_model)), nn.Parameter(torch.full((d_model,), 1e-3))

    def forward(self, x):
        length = x.shape[1]
        y = self.linear(x)
        past = y.cumsum(1) / torch.arange(1, length + 1, device=x.device)[:, None]
        if self.flaw == "mean":
            return past + y.mean(dim=1, keepdim=True)
        if self.flaw == "closed gate":
            return past + self.gate * y.mean(dim=1, keepdim=True)
        if self.flaw == "next":
            return past + y.roll(-1, dims=1)
        if self.flaw == "last":
            return past + y[:, -1:]
        if self.flaw == "chunk":  # as a kernel that lacks the mask within a chunk
            chunks = [chunk.mean(dim=1, keepdim=True).expand_as(chunk) for chunk in y.split(16, dim=1)]
            return past + torch.cat(chunks, dim=1)
        if self.flaw == "norm over time" and self.training:
            return past - past.mean(dim=1, keepdim=True)
        if self.flaw == "in long rows" and length > LENGTH:
            return past + y.mean(dim=1, keepdim=True)
        if self.flaw == "in long rows, in training" and length > LENGTH and self.training:
            return past + y.mean(dim=1, keepdim=True)
        if self.flaw == "over the batch":
            return past + y.mean(dim=0, keepdim=True).cumsum(1)
        if self.flaw == "over the batch, in training" and self.training:
            return past - y.mean(dim=0, keepdim=True)
        if self.flaw == "over the batch and ahead":
            return past + y.mean(dim=(0, 1), keepdim=True)
        if self.flaw == "not finite":
            return past + self.positive.log() * y.mean(dim=1, keepdim=True)
        if self.flaw == "nothing but NaN":
            return past * torch.nan
        if self.flaw == "by FFT":  # a causal convolution that is right up to rounding
            kernel = 0.9 ** torch.arange(length, device=x.device)
            spectrum = torch.fft.rfft(y.float(), 2 * length, dim=1) * torch.fft.rfft(kernel, 2 * length)[:, None]
            return torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length].to(y.dtype)
        return past

    def state_size(self, seq_len):
        return 1


class Drops(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.gru, self.dropout = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(self.gru(x)[0])


def population_of(make, seeds=(0, 1), vocabulary=VOCAB, width=WIDTH):
    return Population(lambda: LanguageModel(vocabulary, width, 2, make), seeds)
