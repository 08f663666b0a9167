"""The stages of the starter's training, from few short documents to many longer ones."""

from starters.generate.reader.loop import Stage
from starters.generate.reader.texts import Mixture
from starters.generate.world.documents import Scope


def stages(
    steps: tuple[int, int, int], num_documents: int, bias: float, *, is_trained: bool = False
) -> tuple[Stage, ...]:
    """Copying; choosing among a few documents, and refusing; many documents, with a preference for places in doubt.

    The rates are lower for weights that are already trained, and higher for those that find.
    """
    few, some = min(4, num_documents), min(6, num_documents)
    copy = Mixture(Scope((min(2, few), few), 1, reversed=0.5, refused=0.0, titled=0.2, similar=0.2, mixed=0.2))
    choose = Mixture(Scope((1, some), 4), pasted=0.08, history=0.15, closed_book=0.03, narrow=0.05, topical=0.05)
    short = Mixture(
        Scope((1, some), 4), pasted=0.08, history=0.15, closed_book=0.03, narrow=0.08, bias=bias, topical=0.08
    )
    long = Mixture(Scope((some, num_documents), 4), pasted=0.06, history=0.12, narrow=0.15, bias=bias, topical=0.08)
    finding, rate = (0.3, 0.7) if is_trained else (0.15, 1.0)
    return (
        Stage(steps[0], ((128, copy),), finding=0.05),
        Stage(steps[1], ((256, choose),), finding, rate),
        Stage(steps[2], ((512, long), (256, short)), 0.3, rate, final=0.05),
    )
