"""Classify sentences with a Transformer: tokens, sentences of unequal length, and two groups of people.

python examples/text_transformer.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedsoft as fs

GOOD, BAD, SLANG = ["great", "lovely", "superb"], ["awful", "boring", "poor"], ["sick", "wicked", "mad"]
OTHERS = [
    "the", "a", "film", "song", "meal", "was", "is", "really", "so", "quite", "and", "then", "we", "saw", "heard",
    "had", "it", "that",
]  # fmt: skip
WORDS = {word: i for i, word in enumerate([*GOOD, *BAD, *SLANG, *OTHERS, "not"])}


def sentences(
    rng: np.random.Generator, *, slang_is_praise: bool, count: int = 80
) -> tuple[list[list[int]], np.ndarray]:
    """Write made-up opinions of one person: sentences as lists of tokens, and 1 for praise.

    `not` turns the word behind it around, so the order of words matters. Slang is praise to some people only.
    """
    x, y = [], []
    for _ in range(count):
        praise, turned = rng.random() < 0.5, rng.random() < 0.3
        means_praise = praise != turned
        words = [*(GOOD if means_praise else BAD)]
        words += 2 * SLANG if means_praise == slang_is_praise else []
        text = [*rng.choice(OTHERS, rng.integers(1, 7)), *(["not"] if turned else []), rng.choice(words)]
        text += [*rng.choice(OTHERS, rng.integers(0, 5))]
        x.append([WORDS[word] for word in text])
        y.append(int(praise))
    return x, np.array(y)


class Transformer(nn.Module):
    """A small encoder. Sentences arrive padded, and `padding_mask` is True where they are."""

    def __init__(self, width: int = 24, longest: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=48, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, padding_mask: Tensor) -> Tensor:
        """Return logits for `tokens[sentences, length]`."""
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found = self.encoder(self.words(tokens) + places, src_key_padding_mask=padding_mask)
        kept = ~padding_mask[..., None]
        return self.head((found * kept).sum(1) / kept.sum(1))


def main() -> None:
    """Train one model for all and two centers, and compare."""
    rng = np.random.default_rng(0)
    people = [sentences(rng, slang_is_praise=k % 2 == 0) for k in range(10)]
    fed = fs.Federation.from_clients(people, names=[f"person-{k}" for k in range(10)], length=16)
    print(fed)
    solver = fs.Adam(lr=1e-2, epochs=5, batch=16)
    for algorithm in (fs.FedAvg(), fs.FedEM(S=2)):
        run = fs.fit(algorithm, fed, Transformer, rounds=12, solver=solver, seed=0)
        spread = run.scores().personal_held_out
        assert spread is not None
        print(f"{type(algorithm).__name__}: {spread.mean:.1%} right on held-out sentences")
    sentence = [WORDS[word] for word in ["the", "song", "was", "really", "sick"]]
    for person in ("person-0", "person-1"):
        praise = float(run.predict([sentence], client=person)[0, 1])
        print(f"'the song was really sick' is praise from {person}: {praise:.0%}")


if __name__ == "__main__":
    main()
