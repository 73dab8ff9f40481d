"""The federations and networks that are trained, once for the loop and once for fedsoft.

Small ones serve for checking that both compute the same, and for trying the benchmarks out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import fedsoft as fs
from benchmarks.loops import Work, squared_error
from fedsoft.models.conditional_logit import Utilities

Norm = Callable[[int], nn.Module]


def synthetic(small: bool) -> Work:
    """The paper's linear regressions in ten dimensions: 84 clients of 100 to 200 points."""
    federation = fs.datasets.synthetic(clients=6 if small else 84)
    return Work(
        federation, lambda: nn.Linear(10, 1, bias=False), fs.models.linear(), squared_error, lr=5e-3,
        epochs=2 if small else 10,
    )  # fmt: skip


def softmax(small: bool) -> Work:
    """A softmax regression on the digits of scikit-learn."""
    federation = digits(small).federation

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))

    return Work(federation, net, fs.models.linear(), epochs=2 if small else 10)


def logistic(small: bool) -> Work:
    """Two classes, ten numbers of each point."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for n in _sizes(small) * (1 if small else 21):
        x = torch.randn(n, 10, generator=draw)
        clients.append((x, (x[:, :3].sum(1) + torch.randn(n, generator=draw) > 0).long()))
    federation = fs.Federation.from_clients(clients, held_out=0, classes=2)
    return Work(federation, lambda: nn.Linear(10, 2, bias=False), fs.models.linear(), epochs=2 if small else 10)


def logit(small: bool) -> Work:
    """Choices among three alternatives with six attributes."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for n in _sizes(small) * (1 if small else 21):
        x = torch.randn(n, 3, 6, generator=draw)
        clients.append((x, (x[..., :3].sum(2) + torch.randn(n, 3, generator=draw)).argmax(1)))
    federation = fs.Federation.from_clients(clients, held_out=0, classes=3)
    return Work(
        federation, lambda: Utilities(torch.zeros(6), available=False), fs.models.conditional_logit(),
        epochs=2 if small else 10,
    )  # fmt: skip


def digits(small: bool) -> Work:
    """An MLP 64-64-10 on the digits of scikit-learn."""
    federation = fs.datasets.digits(clients=6 if small else 100, points=(20, 40) if small else (100, 200))

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return Work(federation, net, fs.models.mlp(hidden=[64]), epochs=2 if small else 10)


def dropout(small: bool, p: float = 0.2) -> Work:
    """The same MLP with dropout."""
    federation = digits(small).federation

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 10))

    return Work(federation, net, fs.models.module(net, init="xavier"), epochs=2 if small else 10)


def dropout_off(small: bool) -> Work:
    """For the check: two sides drop different elements."""
    return dropout(small, 0.0)


def batch_norm(small: bool) -> Work:
    """The same MLP with BatchNorm, without batches of one point, which torch's layer refuses."""
    points = 40 if small else 160  # a quarter is held out
    federation = fs.datasets.digits(clients=6 if small else 100, points=(points, points))

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    return Work(federation, net, fs.models.module(net, init="xavier"), epochs=2 if small else 10)


def letters(small: bool, S: int = 2) -> Work:
    """The paper's CNN on images of random bytes: what they show does not change the time."""

    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 26),
        )  # fmt: skip

    return Work(_images(small), net, fs.models.letters_cnn(), epochs=1 if small else 5, batch=5, S=S)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), norm(after),
        )  # fmt: skip
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def resnet_batch_norm(small: bool) -> Work:
    """The same with BatchNorm."""
    return resnet(small, nn.BatchNorm2d)


def resnet(small: bool, norm: Norm = groups) -> Work:
    """A network of one's own that is no plain chain: three residual blocks on images of 32 x 32 in three colors."""

    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU(),
            Block(16, 16, 1, norm), Block(16, 32, 2, norm), Block(32, 64, 2, norm),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    images = _images(small, (3, 32, 32), 10)
    return Work(images, net, fs.models.module(net), epochs=1 if small else 5, batch=10)


class Reader(nn.Module):
    """A recurrent layer whose last output is classified."""

    def __init__(self, layer: type[nn.LSTM | nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.layer = layer(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def lstm(small: bool, layer: type[nn.LSTM | nn.GRU] = nn.LSTM) -> Work:
    """Sequences of 20 steps with 8 features."""
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 20, 8, generator=draw), torch.randint(10, (n,), generator=draw))
        for n in _sizes(small) * (2 if small else 6)
    ]
    federation = fs.Federation.from_clients(clients, held_out=0, classes=10)
    return Work(federation, lambda: Reader(layer), fs.models.module(lambda: Reader(layer)), epochs=1 if small else 5)


def gru(small: bool) -> Work:
    """The same with a GRU."""
    return lstm(small, nn.GRU)


class Bag(nn.Module):
    """The mean of the embeddings of a text, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))


class Encoder(nn.Module):
    """Two layers of a Transformer, whose mean output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(x)).mean(1))


WORDS, LENGTH = 500, 32


def bag(small: bool) -> Work:
    """Texts as bags of words: integers that stay integers."""
    return Work(_texts(small), Bag, fs.models.module(Bag), epochs=1 if small else 5)


def transformer(small: bool) -> Work:
    """Texts as sequences of words."""
    return Work(_texts(small), Encoder, fs.models.module(Encoder), epochs=1 if small else 5)


def _texts(small: bool) -> fs.Federation:
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.randint(WORDS, (n, LENGTH), generator=draw), torch.randint(4, (n,), generator=draw))
        for n in _sizes(small) * (2 if small else 10)
    ]
    return fs.Federation.from_clients(clients, held_out=0, classes=4)


def _images(small: bool, shape: tuple[int, int, int] = (1, 28, 28), classes: int = 26) -> fs.Federation:
    draw = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randint(256, (n, *shape), generator=draw, dtype=torch.uint8),
            torch.randint(classes, (n,), generator=draw),
        )
        for n in _sizes(small)
    ]
    return fs.Federation.from_clients(clients, held_out=0, classes=classes)


def _sizes(small: bool) -> tuple[int, ...]:
    """Points of each client."""
    return (13, 11) if small else (100, 130, 170, 200)
