"""The lowest versions that pyproject.toml declares: as requirements for pip, or tried out by a short list of commands.

python tools/floors.py                      the requirements, a line each
python tools/floors.py PATH/TO/trisect      run the commands with the trisect of an environment that has them
"""

import re
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
import urllib.request
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PINNED = ("torch",)  # as in constraints.txt: others come with CUDA, and are not asked for again
EXTRAS = ("serve", "images", "erase")  # of which one command each is tried as well
LONGEST = 600
TINY = [f"--set={name}" for name in ("layers=1", "width=16", "heads=2", "epochs=1", "inner=16")]
TRAIN = ["translate-train", "--seeds", "1,", *TINY, "--out", "translation", "--workers", "0"]
COMMANDS = [
    ["--version"],
    ["claims", "--json"],
    ["plan", "quick"],
    ["corpus", "show", "embedded"],
    ["theory", "average", "--out", "theory"],
    TRAIN,
    ["check", "translation/seed-1"],
    ["check", "translation"],
    ["norms", "translation/seed-1", "--text", "a b c .", "--out", "norms"],
    ["explore", "translation/seed-1", "a b", "b a", "--out", "page.html"],
    ["study", "quick", "--seeds", "1,", "--epochs", "1", "--only", "rewind", "--sites", "q@1", "--out", "study"],
]  # fmt: skip

MODELS = """
import torch
import transformers as tf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

torch.manual_seed(0)
words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, "[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", model_max_length=64).save_pretrained("words")
words = tf.GPT2Config(
    vocab_size=3, n_embd=16, n_layer=1, n_head=2, n_positions=64, n_inner=16, bos_token_id=1, eos_token_id=2
)
tf.GPT2LMHeadModel(words).save_pretrained("words")
seeing = tf.ViTConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=4
)
tf.ViTModel(seeing).save_pretrained("seeing")
side = {"height": 16, "width": 16}
tf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=side).save_pretrained("seeing")
Image.effect_noise((20, 30), 64).convert("RGB").save("noise.png")
"""
SERVE = ["serve", "words", "--text", "a b a"]
OF_EXTRAS = [
    ["explore", "seeing", "--image", "noise.png", "--out", "seen.html"],
    ["erase", "words", "--corpus", "embedded", "--sites", "k@1", "--draws", "1", "--limit", "4", "--out", "erased"],
]


class Ended(NamedTuple):
    """How a command ended: its status, and what it said."""

    status: int
    said: str


def floors() -> list[str]:
    """Every dependency, those of the extras too, at the version that it needs at least."""
    requirements = []
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for name in EXTRAS for one in project["optional-dependencies"][name]]
    for one in [*project["dependencies"], *extras]:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+).*", one)
        assert match, f"{one} has no lowest version"
        name, low = match.groups()
        requirements.append(f"{name}=={pins[name] if name in PINNED else low}")
    return requirements


def run(command: list[str], place: str) -> Ended:
    """A command that ends by itself."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LONGEST, check=False)
    return Ended(done.returncode, done.stdout[-500:] + done.stderr[-1500:])


def request(command: list[str], place: str) -> Ended:
    """A command that serves a page, which is asked for once; then the command is interrupted."""
    with (Path(place) / "serve.err").open("w+") as errors:
        served = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=errors, text=True)
        late = threading.Timer(LONGEST, served.kill)
        late.start()
        try:
            assert served.stdout
            address = next((line.strip() for line in served.stdout if line.startswith("http")), "")
            said, good = "no address", False
            if address:
                with urllib.request.urlopen(address, timeout=LONGEST) as page:
                    said = page.read().decode()
                    good = page.status == 200 and "</html>" in said
        except OSError as error:
            said, good = str(error), False
        finally:
            served.send_signal(signal.SIGINT)
            served.wait()
            late.cancel()
        errors.seek(0)
        return Ended(0 if good else 1, said[-500:] + errors.read()[-1500:])


def main() -> None:
    """Print the requirements, or run the commands and end with status 1 where one fails."""
    if len(sys.argv) < 2:
        print("\n".join(floors()))
        return
    trisect, failed = str(Path(sys.argv[1]).absolute()), 0
    calls = [*COMMANDS, *OF_EXTRAS, SERVE]
    with tempfile.TemporaryDirectory() as place:
        models = run([str(Path(trisect).with_name("python")), "-c", MODELS], place)
        assert models.status == 0, models.said
        for words in calls:
            done = (request if words is SERVE else run)([trisect, *words], place)
            print("FAILED" if done.status else "ok    ", " ".join(words), flush=True)
            failed += done.status != 0
            if done.status:
                print(done.said)
    print(f"{len(calls) - failed} of {len(calls)} commands")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
