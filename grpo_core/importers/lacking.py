"""What a batch cannot be asked, by the kind of question, and what would have to be in it."""

from ..batch import Batch

QUESTIONS = (  # question -> what it takes; names joined by "|" stand for each other
    ("the loss", ("policy_logprobs|logits", "old_logprobs|meta.iteration=0", "advantages|rewards")),
    ("log-probs of sampler and trainer", ("sampler_logprobs", "logits|--model")),
    ("which tokens count", ("meta.eos_token_ids", "finish_reasons")),
    ("shift and gather", ("logits|--model",)),
    ("aggregation and denominator", ("reported.loss", "reported.num_items", "meta.aggregation|meta.preset")),
    ("groups and advantages", ("group_ids", "rewards", "advantages")),
    ("KL and reference", ("ref_logprobs", "meta.beta")),
    ("trained ids against sampled ids", ("sampled_ids",)),
    ("position ids", ("position_ids",)),
    ("entropy", ("entropy|logits",)),
    ("which update this is", ("meta.iteration",)),
)


def lacking(batch: Batch, model: bool = False) -> dict[str, tuple[str, ...]]:
    """Question -> what it lacks; questions that lack nothing are left out. `model`: somebody gave one."""
    needs = {question: tuple(need for need in takes if not _met(batch, need, model)) for question, takes in QUESTIONS}
    return {question: missing for question, missing in needs.items() if missing}


def _met(batch: Batch, need: str, model: bool) -> bool:
    return any(_there(batch, name, model) for name in need.split("|"))


def _there(batch: Batch, name: str, model: bool) -> bool:
    if name == "--model":
        return model
    name, _, wanted = name.partition("=")
    place, _, key = name.rpartition(".")
    value = getattr(batch, place).get(key) if place else getattr(batch, name)
    return value is not None and (not wanted or str(value) == wanted)
