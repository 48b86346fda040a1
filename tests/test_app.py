"""The app from its command line to its page: what it starts with, what it refuses, and what a link cannot make it do."""

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import chromium, compare, open_lesson, query, running_app, watched_page
from builders import byte_tokenizer, random_llama
from visitor import Visitor

import app
from grpo_core import load_policy
from grpo_core.__main__ import main as command_line
from grpo_core.presets import PRESETS
from lessons import link, prose, shell, view
from lessons.components import Journey, Nav, Picture, PresetNote, Side
from lessons.knobs import KNOBS

ROOT = Path(__file__).parent.parent
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    """A model whose tokenizer has no chat template."""
    folder, tokenizer = tmp_path_factory.mktemp("plain"), byte_tokenizer(chat=False)
    random_llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def unusable(tmp_path_factory, plain_folder):
    """What somebody may hand in for --model, by what is wrong with it."""
    root = tmp_path_factory.mktemp("unusable")
    for name in ("empty", "weightless", "giant"):
        (root / name).mkdir()
    (root / "file").write_text("x")
    shutil.copy(plain_folder / "config.json", root / "weightless")
    (root / "giant" / "config.json").write_text(json.dumps(LLAMA_70B))
    (root / "giant" / "model.safetensors").touch()
    return root


@pytest.fixture
def busy_port():
    """Where no app can start: one that ought to have refused ends in an error instead of serving for ever."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield str(holder.getsockname()[1])


def left(main, arguments) -> int:
    try:
        return main(arguments)
    except SystemExit as exit_:
        return exit_.code


def test_the_page_has_five_drawn_parts_the_presets_one_control_per_knob_and_no_public_endpoint():
    view.start("tiny")
    blocks = shell.build("en")
    lessons = [part for part in blocks.blocks.values() if getattr(part, "page", "") == ""]  # beside the page Compare
    parts = [type(part) for part in lessons if isinstance(part, (Nav, Picture, Side, Journey, PresetNote))]
    assert sorted(part.__name__ for part in parts) == ["Journey", "Nav", "Picture", "PresetNote", "Side"]
    ids = [str(getattr(part, "elem_id", None)) for part in blocks.blocks.values()]
    assert sorted(i for i in ids if i.startswith("knob-")) == sorted(f"knob-{knob.field}" for knob in KNOBS)
    (presets,) = [part for part in blocks.blocks.values() if getattr(part, "elem_id", None) == "lessons-presets"]
    assert [name for _, name in presets.choices] == list(PRESETS) and presets.value == "paper/grpo"
    assert blocks.get_api_info()["named_endpoints"] == {}


@pytest.mark.parametrize(
    ("name", "found", "allowed"),
    [
        ("nowhere", "found no ", "allowed: an existing folder, a hub id, or tiny"),
        ("empty", "without config.json", "allowed: a folder saved by transformers"),
        ("weightless", "without weights", "allowed: a folder saved by transformers (*.safetensors)"),
        ("file", "found the file ", "allowed: a folder, a hub id, or tiny"),
        ("giant", "has 70.55 B parameters; one step needs about 1314.2 GiB", "GiB are free; choose a smaller model"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line_and_status_2(unusable, busy_port, capfd, name, found, allowed):
    folder, start = str(unusable / name), time.monotonic()
    for main, arguments in ((app.main, ["--port", busy_port]), (command_line, ["step"])):
        status = left(main, [*arguments, "--model", folder])
        out, err = capfd.readouterr()
        (line,) = err.splitlines()
        assert (status, out) == (2, "") and line.startswith("model: ") and repr(folder) in line
        assert found in line and allowed in line
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("arguments", "found", "allowed"),
    [
        (["--lang", "xx"], "--lang: found 'xx'", f"allowed: {', '.join(prose.LANGUAGES)}"),
        (["--port", "abc"], "'abc'", "int"),
        (["--model"], "--model", "expected one argument"),
        (["--flavour", "9"], "--flavour 9", "unrecognized"),
        (["--model", "no-such-model"], "found 'no-such-model'", "no readable config.json"),
    ],
)
def test_an_argument_that_cannot_be_used_is_one_line_and_status_2(busy_port, capfd, arguments, found, allowed):
    status = left(app.main, ["--port", busy_port, *arguments])
    out, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert (status, out) == (2, "") and found in line and allowed in line


def test_the_process_refuses_without_a_traceback_and_without_reading_the_giant(unusable):
    command, start = [sys.executable, "app.py", "--model", str(unusable / "giant")], time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "70.55 B parameters" in done.stderr and time.monotonic() - start < 60


def test_a_refused_model_leaves_the_ones_on_offer(unusable):
    bench = view.start("tiny")
    with pytest.raises(ValueError):
        view.start(str(unusable / "empty"))
    assert view.bench() is bench


def test_the_command_line_takes_a_model_without_a_template_as_plain_text(plain_folder, capsys):
    settings = ["--prompt", "4 + 5 =", "--max-completion-length", "5", "--updates", "1"]
    assert command_line(["step", "--json", "--model", str(plain_folder), *settings]) == 0
    reported = json.loads(capsys.readouterr().out)
    ids = load_policy(str(plain_folder)).tokenizer("4 + 5 =").input_ids
    assert len(ids) == 7 and reported["quantities"]["batch.prompt_ids"]["shape"] == [4, 7]
    assert reported["quantities"]["batch.prompt_ids"]["mean"] == pytest.approx(sum(ids) / 7)


def test_a_link_cannot_make_the_server_load_another_model(plain_folder):
    bench = view.start(str(plain_folder))
    for model in ("tiny", "/etc", "someone/some-model", str(plain_folder.parent)):
        visitor = Visitor().open(f"?lesson=prompt&max_completion_length=5&updates=1&model={model}").run()
        assert visitor.recipe.model == visitor.shown.recipe.model == str(plain_folder)
        (notice,) = visitor.picture["notice"]
        assert notice.startswith(f"model: found {model!r}, allowed here: {plain_folder}")
    assert bench.models == (str(plain_folder),) and view.bench() is bench


def test_the_app_shows_a_model_without_a_template_and_says_that_another_is_not_on_offer(plain_folder):
    view.start(str(plain_folder))
    with chromium() as browser, running_app("--model", str(plain_folder)) as address:
        with watched_page(browser) as page:
            for slug in ("prompt", "masks", "update"):
                open_lesson(page, address, slug, "&max_completion_length=6&updates=1&model=tiny")
                page.wait_for_selector(".notice:has-text(\"found 'tiny', allowed here\")")
                assert link.parse(query(page))[0].model == str(plain_folder)
                assert compare(page) >= 10
