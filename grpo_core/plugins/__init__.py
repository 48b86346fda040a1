"""For those who stay where they are: `grpo_core` as the loss inside another trainer. A file per trainer imports its own."""
