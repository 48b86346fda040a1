"""The causes that `hypotheses` can name, as sentences: what the stored numbers are, and the mend."""

from dataclasses import dataclass

TEMPERATURES = ("temperature missing", "temperature twice", "another temperature", "divided after softmax")
SLOTS = {"one slot late": -1, "one slot early": 1, "logits not shifted": 1}  # which token's value, or row of logits, is there
UNITS = ("divided after softmax", "sign flipped", "probabilities", "base 2", "base 10")


@dataclass(frozen=True)
class Cause:
    says: str  # goes on after "sampler_logprobs are "; {T} is the temperature in use, {value} the one that was found
    fix: str


_ONCE = "Divide the logits by the temperature exactly once, before the softmax, in policy, old and reference alike."
_SHIFT = "The logits at position t predict token t+1: logits[:, :-1] goes with ids[:, 1:], and so does the mask."
_LOGS = "Store natural logarithms: log_softmax over the vocabulary, gathered at the sampled id."
_PROMPT = "Hand the engine the very prompt ids that the trainer scores, or the trainer those that the engine saw."
_MASK = "Pass the attention mask: 1 on every real token of the row, 0 on padding only."
_POSITIONS = "Pass position_ids = (cumulative sum of the attention mask) - 1."

CAUSES = {
    "temperature missing": Cause("from logits that were never divided by the temperature {T:g} (they fit 1)", _ONCE),
    "temperature twice": Cause("from logits divided twice by the temperature {T:g} (they fit {value:.4g})", _ONCE),
    "another temperature": Cause("at temperature {value:.4g} where {T:g} is in use", _ONCE),
    "divided after softmax": Cause("log-probs at temperature 1 divided by {T:g}: the division came after the softmax", _ONCE),
    "kept tokens only": Cause(
        "renormalised over the tokens that top-p, top-k or min-p kept",
        "Score both sides over the same set of tokens: ask the engine for log-probs over the whole vocabulary.",
    ),
    "argmax token": Cause("those of the likeliest token, not of the sampled one", "Gather at the id that was sampled."),
    "one slot late": Cause("one slot late: slot t holds the value of token t-1", _SHIFT),
    "one slot early": Cause("one slot early: slot t holds the value of token t+1", _SHIFT),
    "logits not shifted": Cause("from the logits at the token itself, which predict the one after it", _SHIFT),
    "sign flipped": Cause("negative log-probs with the sign dropped", _LOGS),
    "probabilities": Cause("probabilities, not their logarithms", _LOGS),
    "base 2": Cause("logarithms to base 2", _LOGS),
    "base 10": Cause("logarithms to base 10", _LOGS),
    "no position ids": Cause("from a pass that counted positions from the padding on the left", _POSITIONS),
    "position ids as stored": Cause("from a pass with the stored position ids, which do not count real tokens", _POSITIONS),
    "no attention mask": Cause("from a pass that attended to the padding on the left", _MASK),
    "neither mask nor positions": Cause("from a pass without attention mask and position ids", f"{_MASK} {_POSITIONS}"),
    "attention mask with holes": Cause("from a pass whose attention mask hid real tokens", _MASK),
    "dropout": Cause(
        "as far from the model's as two passes with dropout are from each other",
        "Score in eval mode, or with every dropout probability at 0.",
    ),
    "the engine's prompt": Cause("those behind the prompt that the engine saw, not the one that is trained", _PROMPT),
    "start token twice": Cause("those behind a prompt with the start token twice", _PROMPT),
    "start token missing": Cause("those behind a prompt without its start token", _PROMPT),
    "start token added": Cause("those behind a prompt with a start token in front", _PROMPT),
    "prompt cut at its limit": Cause("those behind a prompt cut to max_prompt_length", _PROMPT),
}

RAW_SAMPLER = Cause(
    "raw: taken before the temperature {T:g} was applied",
    "Ask the engine for processed log-probs (vLLM: logprobs_mode=processed_logprobs), or score the sampler's side again.",
)


def cause_of(name: str, field: str) -> Cause:
    """The sentence for this cause in this field: the engine's log-probs are taken, the trainer's are scored."""
    return RAW_SAMPLER if name == "temperature missing" and field == "sampler_logprobs" else CAUSES[name]
