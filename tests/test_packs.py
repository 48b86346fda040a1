"""Packs: which rows share one, who sees whom in it, and which slot predicts what."""

from dataclasses import replace

import pytest
import torch
from ragged import ragged

from grpo_core.packing import Row, build, plan, rows_by_prompt, split


def rows_of(*lengths: int) -> list[Row]:
    return [Row(place, torch.arange(length), torch.tensor([0])) for place, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("start", "parts"),
    # prompt 1, four completions of 3, cost = tokens² + start: 1 pack 169, 2 packs 49, 3 packs 25, 4 packs 16 each
    # start 0: 169, 98, 75, 64 · start 30: 199, 158, 165, 184 · start 100: 269, 298, 375, 464
    [(0, [[0], [1], [2], [3]]), (30, [[0, 1], [2, 3]]), (100, [[0, 1, 2, 3]])],
)
def test_a_group_is_split_where_its_square_costs_more_than_another_start(start, parts):
    found = split(1, rows_of(3, 3, 3, 3), lambda tokens: tokens**2 + start)
    assert [[row.row for row in part] for part in found] == parts


def test_rows_of_like_length_share_a_pack():
    # prompt 1, mean 4, cost = tokens² + 60: 1 pack 349, 2 packs of 1 + 8: 282, 3 of 1 + 5: 288, 4 of 1 + 4: 340
    found = split(1, rows_of(7, 1, 7, 1), lambda tokens: tokens**2 + 60)
    assert [[row.row for row in part] for part in found] == [[1, 3], [0, 2]]


def test_small_groups_share_a_pack_while_that_costs_less_than_a_start():
    # packs read 2, 3 and 9 tokens (a completion's last one is not read): 25 + 30 < 4 + 9 + 60, then 196 + 30 > 25 + 81 + 60
    groups = {(1,): rows_of(2), (1, 2): rows_of(2), (1, 2, 3): rows_of(7)}
    found = plan(groups, lambda tokens: tokens**2 + 30)
    assert [[prompt for prompt, _ in pack] for pack in found] == [[(1,), (1, 2)], [(1, 2, 3)]]


def test_a_pack_says_who_sees_whom_and_which_slot_predicts_what():
    # prompt 7 8 | completion a: 1 2 (3) | completion b: 4 (5); the last of each is not read
    rows = [Row(4, torch.tensor([1, 2, 3]), torch.tensor([0, 2])), Row(1, torch.tensor([4, 5]), torch.tensor([0, 1]))]
    pack = build([((7, 8), rows)], torch.device("cpu"))
    assert pack.ids.tolist() == [[7, 8, 1, 2, 4]] and pack.positions.tolist() == [[0, 1, 2, 3, 2]]
    assert pack.allowed.int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    assert pack.slots.tolist() == [1, 3, 1, 4] and pack.rows == (4, 1)


def test_equal_prompts_are_one_and_rows_without_a_trained_token_are_left_out():
    groups = rows_by_prompt(replace(ragged("sequence"), group_ids=None))
    assert [(len(prompt), [row.row for row in rows]) for prompt, rows in groups.items()] == [(5, [0, 2]), (3, [3, 4]), (2, [5])]
    assert groups[12, 13, 14][0].trained.tolist() == [0, 1, 4, 5] and groups[12, 13, 14][1].trained.tolist() == [1]
