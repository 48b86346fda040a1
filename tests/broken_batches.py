"""For every check that a batch file can answer: a batch that it must mark, where, and what would be right (`near_batches` has
those that it must let pass). Made of the worked batches in `data/cases` with one thing changed.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch
from broken import put

from grpo_core import load_batch

NAN, INF = float("nan"), float("inf")


@cache
def case(name):
    (path,) = (Path(__file__).parent / "data" / "cases").glob(f"{name}-*.json")
    return load_batch(str(path))


FIRST, SCORED, LATER, TOOL = "clean-01", "clean-03", "clean-05", "clean-06"  # first update · with logits · third · tools


def but(name, **changes):
    """A worked batch with fields replaced; a function is called with the field as it is."""
    batch = case(name)
    return replace(batch, **{key: new(getattr(batch, key)) if callable(new) else new for key, new in changes.items()})


def with_meta(name, batch=None, **settings):
    batch = batch or case(name)
    return replace(batch, meta={**batch.meta, **settings})


def printed(name, batch=None, **numbers):
    batch = batch or case(name)
    return replace(batch, reported={**batch.reported, **numbers})


def at(place, value):
    return lambda tensor: put(tensor, place, value)


def shifted(mask, by):
    moved = mask.roll(by, 1)
    moved[:, 0 if by > 0 else -1] = False
    return moved


def packed(trained_start):
    """Two packed sequences in row 0 of the tool batch: the second starts at position 9."""
    mask = case(TOOL).trained_mask().clone()
    mask[0, 8] = trained_start
    return with_meta(TOOL, but(TOOL, loss_mask=mask, tool_mask=None), packed_boundaries=[[0, 9]] + [[0]] * 7)


def two_stop_ids(completion):
    """Row 0 ends in the second stop id 27; the mask of a trainer that knows only id 2 goes on to the end."""
    ids, mask = case(FIRST).completion_ids.clone(), case(FIRST).completion_mask.clone()
    ids[0] = torch.tensor(completion)
    mask[0] = True
    return with_meta(FIRST, but(FIRST, completion_ids=ids, completion_mask=mask), eos_token_ids=[2, 27])


def lengths(logprobs):
    counts = {"completion_ids": (8,) * 8, "completion_mask": (8,) * 8, "policy_logprobs": (8, logprobs, *(8,) * 6)}
    return but(FIRST, row_lengths=counts)


def prompts(row, ids):
    mask = torch.tensor([value != 0 for value in ids])
    return but(FIRST, prompt_ids=at(row, torch.tensor(ids)), prompt_mask=at(row, mask))


def engine(rows):
    """What the engine saw of each prompt, the trainer's own by default."""
    own = case(FIRST).prompt_ids.tolist()
    wide = [rows.get(row, ids) for row, ids in enumerate(own)]
    most = max(map(len, wide))
    return torch.tensor([[0] * (most - len(ids)) + ids for ids in wide])


def positions(start):
    real = case(FIRST).row_mask().long()
    return (real.cumsum(1) - 1).clamp(min=0) + start


def noisy(name, field_, size, rows=slice(None)):
    noise = torch.zeros_like(getattr(case(name), field_))
    noise[rows] = size * torch.randn(noise[rows].shape, generator=torch.Generator().manual_seed(3))
    return getattr(case(name), field_) - noise.abs()


def advantages(values):
    return but(FIRST, advantages=torch.tensor(values))


A = case(FIRST).advantages.tolist()
M = case(FIRST).completion_mask
REF = case(LATER).ref_logprobs
BIASED = [a * (2 / 3**0.5) for a in A]  # the spread of four divided by 4, not by 3


@dataclass(frozen=True)
class Red:
    batch: object
    severity: str
    rows: tuple = ()  # () = not looked at, as tokens
    tokens: tuple = ()  # as the report prints them
    expected: dict = field(default_factory=dict)  # some of what should have been there


def tokens(mask):
    return tuple(map(tuple, mask.nonzero().tolist()))


def rewarded(*values):
    rewards = torch.tensor([[NAN if v is None else v] for v in values])
    return {"rewards": rewards, "rewards_missing": rewards.isnan()}


def cut_off(left_out):
    """Four of the rows did not finish, and their 32 of 55 tokens are in the loss mask."""
    return with_meta(FIRST, but(FIRST, loss_mask=M), mask_truncated=left_out)


LOST = but(FIRST, loss_mask=shifted(M, 1))
ON_PAD = but(FIRST, completion_mask=at((0, 2), True))
FP32_NEAR = case(FIRST).policy_logprobs + 5e-5
EMPTY = but(
    FIRST, completion_ids=at(0, 0), completion_mask=at(0, False), finish_reasons=("abort", *case(FIRST).finish_reasons[1:])
)
ALTERNATING = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
WINDOWS = replace(case(FIRST).rows(ALTERNATING), group_ids=None)

BATCH_RED = {
    "row_lengths_agree": Red(lengths(7), "error", (1,), (), {"lengths[1]": {"completion_ids": 8, "completion_mask": 8,
                                                                           "policy_logprobs": 8}}),
    "ids_in_vocab": Red(but(FIRST, completion_ids=at((2, 3), 32)), "error", (2,), ((2, 3),), {"vocab_size": 32}),
    "prompt_truncated": Red(
        replace(prompts(4, [0, 9, 3, 14, 6, 20]), sampler_prompt_ids=engine({})), "error", (4,), (),
        {"prompt_ids[4]": [1, 9, 3, 14, 6, 20]}),
    "double_bos": Red(prompts(0, [0, 1, 1, 7, 12, 5]), "warning", (0,), ((0, 2),), {"prompt_ids[0]": [1, 7, 12, 5]}),
    "prompt_ids_match_engine": Red(
        but(FIRST, sampler_prompt_ids=engine({1: [1, 7, 11, 5]})), "error", (1,), (), {"prompt_ids[1]": [1, 7, 11, 5]}),
    "retokenisation_drift": Red(
        but(FIRST, sampled_ids=put(case(FIRST).completion_ids, (1, 2), 9)), "error", (1,), ((1, 2),), {"length[1]": 5}),
    "attention_mask_holes": Red(
        but(TOOL, attention_mask=at((0, 9), False)), "error", (0,), ((0, 9),)),
    "position_ids_count": Red(but(FIRST, position_ids=put(positions(0), (2, slice(9, 14)), 3)), "error", (2,)),
    "packed_boundary_labels": Red(packed(True), "error", (0,), ((0, 9),)),
    "mask_shift": Red(LOST, "error", tuple(range(8)), tokens(M & ~shifted(M, 1) | shifted(M, 1) & ~M), {"num_items": 55}),
    "first_token_scored": Red(but(FIRST, completion_mask=at((slice(None), 0), False)), "error", tuple(range(8)),
                              tuple((row, 0) for row in range(8)), {"num_items": 55}),
    "secondary_eos": Red(two_stop_ids([6, 27, 0, 0, 0, 0, 0, 0]), "error", (0,), tuple((0, c) for c in range(2, 8)),
                         {"num_items": 55}),
    "eos_in_mask": Red(but(FIRST, completion_mask=at((1, 4), False)), "error", (1,), ((1, 4),), {"num_items": 55}),
    "mask_after_eos": Red(ON_PAD, "error", (0,), ((0, 2),), {"num_items": 55, "loss": 0.0}),
    "finished_without_eos": Red(but(FIRST, completion_ids=at((1, 4), 9)), "warning", (1,)),
    "tool_tokens_in_loss": Red(but(TOOL, loss_mask=case(TOOL).tool_mask & case(TOOL).row_mask()[:, 1:]
                                   & (torch.arange(17) > 4) | ~case(TOOL).tool_mask & (torch.arange(17) == 8)), "error",
                               (0, 1, 2, 4, 5, 6), tuple((row, 9) for row in (0, 1, 2, 4, 5, 6))),
    "prompt_tokens_in_loss": Red(but(TOOL, loss_mask=put(case(TOOL).trained_mask(), (0, 3), True)), "error", (0,), ((0, 4),),
                                 {"num_items": 56}),
    "truncated_rows_in_loss": Red(cut_off(True), "error", (2, 3, 5, 7), (), {"num_items": 23}),
    "mask_nonempty": Red(but(FIRST, completion_mask=at(slice(None), False), reported={"loss": NAN}), "error",
                         tuple(range(8)), (), {"loss": 0.0, "num_items": 0}),
    "rollout_logprob_finite": Red(but(FIRST, sampler_logprobs=at((3, 1), -INF)), "error", (3,), ((3, 1),)),
    "logprob_positive": Red(but(FIRST, old_logprobs=at((0, 5), -1e9)), "error", (0,), ((0, 5),)),
    "nonfinite_under_mask0": Red(but(FIRST, policy_logprobs=at((0, 7), NAN)), "warning", (0,), ((0, 7),), {"loss": 0.0}),
    "entropy_finite": Red(but(SCORED, entropy=at((1, 2), NAN)), "warning", (1,), ((1, 2),)),
    "logprob_hypotheses": Red(case("A01"), "error"),
    "temperature_consistency": Red(case("A01"), "error", (), (), {"scoring_temperature": 0.5}),
    "rollout_logprob_mode": Red(case("A02"), "error", (), (), {"sampler_temperature": 0.6}),
    "logprob_units": Red(but(FIRST, sampler_logprobs=-case(FIRST).sampler_logprobs), "error"),
    "shift_probe": Red(case("C01"), "error", (), (), {"best_offset": 0}),
    "dropout_active": Red(case("A08"), "error"),
    "logprob_dtype_mix": Red(case("A07"), "warning"),
    "truncated_support_bias": Red(case("A04"), "warning", (), (), {"mean_log_ratio": 0.0}),
    "padding_invariance_model": Red(case("J01"), "error", (2, 3)),
    "padding_invariance": Red(case("D07"), "error", (0, 1), ((0, 2), (0, 3), (1, 3)), {"kl": 0.16}),
    "old_equals_ref": Red(
        with_meta(LATER, but(LATER, old_logprobs=REF), iteration=0, updates_since_sampling=0), "error"),
    "sampler_logprobs_match": Red(but(FIRST, sampler_logprobs=noisy(FIRST, "sampler_logprobs", 0.9)), "error"),
    "ratio_first_step": Red(but(FIRST, old_logprobs=at((2, 3), -1.0)), "error", (2,), ((2, 3),), {"max_abs_log_ratio": 0.0}),
    "stale_iteration": Red(
        with_meta(FIRST, but(FIRST, sampler_logprobs=case(FIRST).policy_logprobs), iteration=3), "warning"),
    "seq_weight_definition": Red(
        but(FIRST, sequence_weights=(M * (case(FIRST).old_logprobs - case(FIRST).sampler_logprobs).exp()).sum(1)), "error",
        tuple(range(8)), (), {"mean": 1.0}),
    "reward_finite": Red(but(FIRST, **rewarded(1, INF, 0, 1, 0, 0, 1, 0)), "error", (1,), (),
                         {"advantages": [0.57735, 0.0, -1.154701, 0.57735, -0.5, -0.5, 1.5, -0.5]}),
    "reward_imputed": Red(but(FIRST, **rewarded(1, None, 0, 1, 0, 0, 1, 0)), "warning", (1,), (),
                          {"advantages": [0.57735, 0.0, -1.154701, 0.57735, -0.5, -0.5, 1.5, -0.5]}),
    "group_contiguity": Red(replace(WINDOWS, advantages=torch.tensor([0.8660254, -0.8660254] * 2 + [-0.5, 1.5, -0.5, -0.5]),
                                    rewards=torch.tensor([[1.0], [0.0]] * 2 + [[0.0], [1.0], [0.0], [0.0]])), "error",
                            tuple(range(8))),
    "group_id_vs_prompt": Red(but(FIRST, group_ids=torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])), "warning", tuple(range(8))),
    "group_size_min": Red(case("E05"), "error", (3,), (), {"advantages": [0.5773503, -1.154701, 0.5773503, 0.0]}),
    "empty_completion_in_group": Red(EMPTY, "warning", (0,), ()),
    "advantage_group_sum": Red(advantages([a + 0.1 for a in A]), "error", tuple(range(8)), (), {"group_sums": [0.0, 0.0]}),
    "advantage_magnitude": Red(advantages([2.5 * a for a in A]), "error", (0, 1, 2, 3), (), {"max": 1.5}),
    "advantage_recompute": Red(advantages([-a for a in A]), "error", tuple(range(8)), (), {"advantages": A}),
    "advantage_row_constant": Red(
        but(FIRST, advantages=put(torch.tensor(A).unsqueeze(1).expand(8, 8).clone(), (2, 3), 0.0)), "error", (2,), ((2, 3),)),
    "zero_std_groups": Red(case("E04"), "warning", (), (), {"group_std": [0.0, 0.0]}),
    "kl_step0_zero": Red(case("F04"), "warning", (), (), {"kl_mean": 0.0}),
    "reference_is_policy": Red(but(LATER, ref_logprobs=case(LATER).policy_logprobs), "error"),
    "kl_logratio_range": Red(but(LATER, ref_logprobs=at((1, 1), 84.5 - 5.156926)), "error", (1,), ((1, 1),),
                             {"k3_clamped_before_at_10": 22015.466}),
    "kl_estimator_in_loss": Red(with_meta(LATER, kl_estimator="k1"), "error"),
    "kl_outliers_not_sampled": Red(case("B08"), "error", (0,), ((0, 1), (0, 2)), {"kl": 0.003518545}),
    "denominator_matches_mask": Red(printed(FIRST, num_items=64), "error", (), (), {"num_items": 55}),
    "split_invariance": Red(case("D03"), "error", (), (), {"loss": 0.1731751}),
    "aggregation_fingerprint": Red(case("D01"), "error", (), (), {"loss": 0.02514224}),
    "clip_fraction_by_gradient": Red(printed(LATER, clip_fraction=0.0), "warning", (), (), {"clip_fraction": 0.1136364}),
    "kl_metric": Red(printed(LATER, kl=-float((case(LATER).policy_logprobs - REF)[case(LATER).completion_mask].mean())),
                     "warning", (), (), {"kl": 0.007589533}),
    "loss_finite": Red(printed(FIRST, loss=NAN), "error", (), (), {"loss": 0.0}),
    "backward_finite": Red(printed(FIRST, grad_norm=NAN), "error"),
    "requires_grad": Red(printed(FIRST, grad_norm=0.0), "error"),
    "ratio_identically_one": Red(with_meta(FIRST, iteration=2), "warning"),
    "expected_on_policy_loss": Red(case("D02"), "info", (), (), {"loss": 0.1731751}),
    "loss_zero_explain": Red(case("H01"), "info", (), (), {"grad_policy_logprobs_norm": 0.3124459}),
    "loss_sign_explain": Red(case("H02"), "info", (), (), {"policy_term": -0.3888111, "kl_term": 0.0}),
}  # fmt: skip
