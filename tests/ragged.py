"""A batch with everything that packing has to get right: padding on both sides, groups, rows of all lengths, tool tokens."""

import torch
from builders import PAD

from grpo_core import Batch

# Prompts of 5 (twice), 3 and 2 tokens behind left padding; completions of 1 to 6 tokens.
PROMPTS = ([7, 8, 9, 10, 11], [7, 8, 9, 10, 11], [7, 8, 9, 10, 11], [12, 13, 14], [12, 13, 14], [15, 16])
COMPLETIONS = ([20, 21, 22, 23], [24], [25, 26, 2], [27, 28, 29, 30, 31, 2], [32, 33], [34, 2])
LONGEST = 9  # of the rows without padding: 3 + 6
# Row 1 has nothing trained; a tool wrote the middle of row 3 and the start of row 4.
UNTRAINED, TOOL = 1, ((3, 2), (3, 3), (4, 0))


def ragged(layout: str) -> Batch:
    """The rows above in one of the two layouts."""
    before, behind = [5 - len(p) for p in PROMPTS], [6 - len(c) for c in COMPLETIONS]
    prompts = torch.tensor([[PAD] * n + p for n, p in zip(before, PROMPTS, strict=True)])
    completions = torch.tensor([c + [PAD] * n for n, c in zip(behind, COMPLETIONS, strict=True)])
    real = torch.arange(5) >= torch.tensor(before).unsqueeze(1)
    answered = torch.arange(6) < torch.tensor([len(c) for c in COMPLETIONS]).unsqueeze(1)
    trained, groups = answered.clone(), torch.tensor([0, 0, 0, 1, 1, 2])
    trained[UNTRAINED] = False
    for cell in TOOL:
        trained[cell] = False
    if layout == "prompt_completion":
        masks = {"prompt_mask": real, "completion_mask": answered, "loss_mask": trained}
        return Batch(prompt_ids=prompts, completion_ids=completions, group_ids=groups, **masks)
    whole = {"input_ids": torch.cat([prompts, completions], 1), "attention_mask": torch.cat([real, answered], 1)}
    response = torch.cat([torch.zeros_like(real), answered], 1)
    loss_mask = torch.cat([torch.zeros(6, 4, dtype=torch.bool), trained], 1)
    return Batch(**whole, response_mask=response, loss_mask=loss_mask, group_ids=groups)
