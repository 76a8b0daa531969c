"""TRL: `GRPOTrainer` with step advantages trains a tiny random model for two steps on CPU."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="needs trl: make test-engines")

import trl
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

import rtmc
import rtmc.adapters.trl as credit
from rtmc.errors import EstimatorError, TableError

pytestmark = pytest.mark.filterwarnings("ignore:You are using '(rollout_func|environment_factory)'")

# Four completions of one task: (sampled tokens of each turn, tokens of the tool's answer after it), the steps' keys.
TURNS = [
    [([5, 6], [40]), ([7], [])],
    [([5, 6], [40, 41]), ([8, 9], [42]), ([7], [])],
    [([10], [])],
    [([11], [43]), ([12, 13], [])],
]
STEPS = [
    [{"state": "s", "action": "x"}, {"state": "sx", "action": "y"}],
    [{"state": "s", "action": "x"}, {"state": "sx", "action": "z"}, {"state": "sxz", "action": "y"}],
    [{"state": "s", "action": "y"}],
    [{"state": "s", "action": "w", "reward": 0.25}, {"state": "sw", "action": "y"}],
]
REWARDS = [1.0, 0.0, 0.0, 1.0]


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and the special tokens that Qwen3's chat template uses."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word) for word in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    core.add_tokens([AddedToken(word, normalized=False) for word in ("<tool_call>", "</tool_call>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return fast


def model(vocabulary: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 8192}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, num_attention_heads=2, num_key_value_heads=1, **sizes))


class Seen:
    """What reached the loss, row by row."""

    seen: list

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"] * inputs.get("tool_mask", torch.ones_like(inputs["completion_mask"]))
        self.seen += [
            (ids[: int(real.sum())].tolist(), mask_.tolist(), advantage.tolist())
            for ids, real, mask_, advantage in zip(
                inputs["completion_ids"], inputs["completion_mask"], mask, inputs["advantages"], strict=True
            )
        ]
        return super()._compute_loss(model, inputs)


class StepTrainer(Seen, credit.StepAdvantageMixin, GRPOTrainer):
    pass


def arguments(tmp_path, **changes):
    """GRPOTrainer's keywords: one task, groups of four, split into two micro-batches."""
    words = tokenizer()
    settings = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 64,
        "max_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        **changes.pop("settings", {}),
    }
    return {
        "model": model(len(words)),
        "args": GRPOConfig(**settings),
        "processing_class": words,
        "train_dataset": Dataset.from_list([{"prompt": "go"}] * 2),
        **changes,
    }


def scripted(turns=TURNS, steps=STEPS):
    def rollout_func(prompts, trainer):
        end = trainer.processing_class.eos_token_id
        ids, masks = [], []
        for row, _ in enumerate(prompts):
            tokens, mask = [], []
            for sampled, answer in turns[row % len(turns)]:
                tokens += [*sampled, *answer]
                mask += [1] * len(sampled) + [0] * len(answer)
            ids.append([*tokens, end])
            masks.append([*mask, 1])
        found = {
            "prompt_ids": [[1, 2, 3]] * len(prompts),
            "completion_ids": ids,
            "logprobs": None,
            "env_mask": masks,
        }
        return found if steps is None else found | {"rtmc_steps": [steps[row % 4] for row, _ in enumerate(prompts)]}

    return rollout_func


def rewarded(rewards=REWARDS):
    return lambda prompts, **_: [rewards[row % len(rewards)] for row, _ in enumerate(prompts)]


def expected(method, outcome=REWARDS, steps=STEPS, **options):
    rows = [
        {"state": 0, "action": 0, **step, "group": 0, "rollout": r, "index": i, "outcome": outcome[r]}
        for r, of_row in enumerate(steps)
        for i, step in enumerate(of_row)
    ]
    taken = iter(rtmc.advantages(rtmc.StepTable.from_rows(rows), method, **options).tolist())
    return [[next(taken) for _ in of_row] for of_row in steps]


def along(mask, per_step):
    """Advantages of a row by its mask: each run of ones the next step's."""
    out, run = [], -1
    for place, token in enumerate(mask):
        run += bool(token and (place == 0 or not mask[place - 1]))
        out.append(per_step[run] if token else 0.0)
    return out


def check(seen, per_step, ends, rows=8):
    """Every row of the loss has its own steps' advantages, wherever TRL's shuffling put it."""
    assert len(seen) == rows
    starts = [tuple(token for sampled, answer in turns for token in (*sampled, *answer)) for turns in TURNS]
    found = []
    for ids, mask, advantage in seen:
        row = starts.index(tuple(ids[:-1]))
        found.append(row)
        assert ids[-1] == ends
        assert sum(mask) == sum(len(sampled) for sampled, _ in TURNS[row]) + 1
        assert advantage == along(mask, per_step[row]), row
    assert sorted(found) == sorted([0, 1, 2, 3] * (rows // 4))


def test_rollout_func_trains_two_steps(tmp_path):
    class Trainer(StepTrainer):
        rtmc_options = {"gamma": 0.9}  # noqa: RUF012  # as a user writes it

    trainer = Trainer(**arguments(tmp_path, rollout_func=scripted(), reward_funcs=rewarded()))
    trainer.seen = []
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 2
    assert any(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())
    check(trainer.seen, expected("rtmc", gamma=0.9), trainer.processing_class.eos_token_id)
    assert all(torch.isfinite(torch.tensor(log["loss"])) for log in trainer.state.log_history if "loss" in log)


def test_shared_states_matter_and_grpo_is_trls_own(tmp_path):
    class Grpo(StepTrainer):
        rtmc_method = "grpo"
        rtmc_options = {"parity": "trl"}  # noqa: RUF012  # as a user writes it

    given = {"rollout_func": scripted(steps=None), "reward_funcs": rewarded(), "settings": {"max_steps": 1}}
    ours = Grpo(**arguments(tmp_path, **given))
    ours.seen = []
    ours.train()

    class Plain(Seen, GRPOTrainer):
        pass

    own = Plain(**arguments(tmp_path, **given))
    own.seen = []
    own.train()
    by_ids = {tuple(ids): advantage for ids, _, advantage in own.seen}
    for ids, mask, advantage in ours.seen:
        torch.testing.assert_close(
            torch.tensor(advantage), torch.tensor(mask) * by_ids[tuple(ids)], rtol=1e-5, atol=1e-6
        )


def test_unknown_rewards_count_as_absent(tmp_path):
    given = {"rollout_func": scripted(), "reward_funcs": rewarded([1.0, None, 0.0, 1.0]), "settings": {"max_steps": 1}}
    trainer = StepTrainer(**arguments(tmp_path, **given))
    trainer.seen = []
    trainer.train()
    check(
        trainer.seen,
        expected("rtmc", outcome=[1.0, float("nan"), 0.0, 1.0]),
        trainer.processing_class.eos_token_id,
        rows=4,
    )
    log = trainer.state.log_history[0]
    assert log["rtmc/unknown_outcomes"] == 0.25
    assert log["rtmc/uniform_groups"] == 0.0


def test_uniform_groups_are_counted_by_group_not_by_batch(tmp_path):
    # Groups [1, 1] and [0, 1]: half of them have nothing to compare, though the batch has.
    given = {
        "rollout_func": scripted(),
        "reward_funcs": rewarded([1.0, 1.0, 0.0, 1.0]),
        "settings": {"max_steps": 1, "num_generations": 2, "scale_rewards": "batch"},
    }
    trainer = StepTrainer(**arguments(tmp_path, **given))
    trainer.seen = []
    trainer.train()
    assert trainer.state.log_history[0]["rtmc/uniform_groups"] == 0.5


def test_truncated_rows_are_masked_everywhere(tmp_path):
    def cut(prompts, trainer):
        found = scripted()(prompts, trainer)
        found["completion_ids"][1][-1] = 5  # no end of text: cut at the limit
        return found

    given = {
        "rollout_func": cut,
        "reward_funcs": rewarded(),
        "settings": {"max_steps": 1, "mask_truncated_completions": True},
    }
    trainer = StepTrainer(**arguments(tmp_path, **given))
    trainer.seen = []
    trainer.train()
    masked = [advantage for _, mask, advantage in trainer.seen if not any(mask)]
    assert len(masked) == 1
    assert not any(masked[0])
    # The others still learn from it: its steps are in the table.
    whole = expected("rtmc")
    for ids, mask, advantage in trainer.seen:
        if ids[:1] == [11]:
            assert advantage == along(mask, whole[3])


@pytest.mark.parametrize(
    ("steps", "error", "text"),
    [
        (None, EstimatorError, "needs the state key of every step; completion 0, step 0 has none"),
        ([[{"state": 0, "action": 0}]] * 4, TableError, "completion 0: the mask has 2 runs .* but 1 steps"),
        (["no steps"] * 4, TableError, "completion 0: got str, wanted the row's steps"),
    ],
)
def test_bad_steps(tmp_path, steps, error, text):
    trainer = StepTrainer(**arguments(tmp_path, rollout_func=scripted(steps=steps), reward_funcs=rewarded()))
    trainer.seen = []
    with pytest.raises(error, match=text):
        trainer.train()


class Doors:
    """Two doors; the reward is 1 for having opened the right one."""

    def __init__(self):
        self._open: list[str] = []

    def reset(self, **_) -> None:
        self._open = []

    def open(self, door: str) -> str:
        """
        Open a door.

        Args:
            door: left or right
        """
        if door not in ("left", "right"):
            raise ValueError("no such door")
        self._open.append(door)
        return f"the {door} door is open"

    @property
    def rtmc_state(self):
        return ("open", *self._open)

    @property
    def rtmc_reward(self):
        return 0.125

    def get_reward(self):
        return float("right" in self._open)


def call(door, name="open"):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'door': door}})}\n</tool_call>"


SCRIPT = [
    [call("left"), "done"],
    [call("left") + "\n" + call("right"), "done"],  # two calls in one turn
    ["at once"],
    [call("left", "kick"), call("middle"), call("right")],  # no such tool, a call that raises, cut before its answer
]
START, LEFT, BOTH = ("open",), ("open", "left"), ("open", "left", "right")
DOOR_STEPS = [
    [{"state": START, "action": "L", "next_state": LEFT, "reward": 0.125}, {"state": LEFT, "action": "t0"}],
    [{"state": START, "action": "LR", "next_state": BOTH, "reward": 0.25}, {"state": BOTH, "action": "t1"}],
    [{"state": START, "action": "t2"}],
    [
        {"state": START, "action": "t3"},
        {"state": START, "action": "M", "next_state": START, "reward": 0.125},
        {"state": START, "action": "R"},
    ],
]


def test_environment_factory_trains_two_steps(tmp_path):
    class Trainer(StepTrainer):
        def _generate_single_turn(self, prompt_ids, *rest, **more):
            """Play the script: a turn begins with the number of its completion."""
            turns = []
            for row, ids in enumerate(prompt_ids):
                text = self.processing_class.decode(ids)
                known = [k for k in range(4) if f"#{k} " in text]
                number = known[0] if known else row % 4
                turns.append(f"#{number} {SCRIPT[number][text.count(f'#{number} ')]}<|im_end|>")
            return [self.processing_class(turn)["input_ids"] for turn in turns], None

    given = {
        "environment_factory": Doors,
        "train_dataset": Dataset.from_list([{"prompt": [{"role": "user", "content": "open the right door"}]}] * 2),
        "settings": {"max_completion_length": 2048, "max_tool_calling_iterations": 2},
    }
    trainer = Trainer(**arguments(tmp_path, **given))
    trainer.seen = []
    trainer.train()
    assert trainer.state.global_step == 2
    wanted = expected("rtmc", outcome=[0.0, 1.0, 0.0, 0.0], steps=DOOR_STEPS)
    assert len(trainer.seen) == 8
    for ids, mask, advantage in trainer.seen:
        number = int(trainer.processing_class.decode(ids)[1])
        assert sum(b > a for a, b in zip([0, *mask], mask, strict=False)) == len(DOOR_STEPS[number])
        assert advantage == along(mask, wanted[number]), number


def test_padding_of_ones_is_no_step(tmp_path):
    trainer = StepTrainer(**arguments(tmp_path, rollout_func=scripted(), reward_funcs=rewarded()))
    trainer.seen = []
    trainer.train()
    short = [advantage for ids, _, advantage in trainer.seen if ids[:1] == [10]]
    assert all(advantage[2:] == [0.0] * (len(advantage) - 2) for advantage in short)
    assert all(len(advantage) > 2 for advantage in short)


def test_the_lines_to_paste(tmp_path, paste):
    keywords = arguments(tmp_path, rollout_func=scripted(), reward_funcs=rewarded())
    trainer = paste(credit, keywords=keywords)["trainer"]
    assert trainer.state.global_step == 2
    assert "rtmc/uniform_groups" in trainer.state.log_history[0]
