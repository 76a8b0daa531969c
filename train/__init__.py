"""Fine-tune a LoRA agent: sample rollouts, credit their steps, update the adapter."""
