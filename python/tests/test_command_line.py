"""The wheel's program: every verb of the command line, with its exit codes, and scripts whose step is planned."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from networks import build

import plimsoll

PROGRAM = Path(sysconfig.get_path("scripts")) / "plimsoll"

SCRIPT = """
import sys
import torch
import torch.nn.functional as F
import plimsoll

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Flatten(), torch.nn.Linear(16 * 64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
step = plimsoll.tune(lambda x, y: F.cross_entropy(model(x), y), model, optimizer, (x, y){more})
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
    optimizer.zero_grad()
    step(x, y)
    optimizer.step()
print("trained", __name__, *sys.argv[1:])
"""


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PLIMSOLL_")}


def program(folder, *arguments):
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def script(folder, text=SCRIPT, more=', budget="100%", link="1GB/s", seconds=0.5'):
    (folder / "train.py").write_text(text.replace("{more}", more))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    task = build("convolutions")
    path = tmp_path_factory.mktemp("traces") / "step.trace.json"
    plimsoll.trace(task.loss, task.model, *task.batches[0]).save(path)
    return path


def test_verbs_take_the_trace_of_a_step(trace, tmp_path):
    planned = program(tmp_path, "plan", trace, "--budget", "80%", "--link", "1GB/s", "-o", "s.json")
    assert planned.returncode == 0, planned.stderr
    schedule = plimsoll.Schedule.from_json(
        (tmp_path / "s.json").read_text(), plimsoll.Trace(trace.read_text())
    )
    assert schedule.recomputed_ops > 0 or schedule.offloaded_bytes > 0
    checked = program(tmp_path, "check", trace, "s.json", "--format", "json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)
    reported = program(tmp_path, "report", "--trace", trace, "--schedule", "s.json", "-o", "r.html")
    assert reported.returncode == 0, reported.stderr
    page = (tmp_path / "r.html").read_text()
    command = re.search(r'"command":"(.*?)"', page)[1]
    assert command.startswith("plimsoll report --trace")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--version"], 0, "plimsoll 0.1.0"),
        (["--help"], 0, "Usage: plimsoll"),
        (["networks", "no-such"], 2, "no-such"),
        (["paint"], 2, "unrecognized subcommand"),
        (["plan", "TRACE", "--budget", "1KiB", "--link", "1GB/s"], 3, "budget"),
        (["check", "TRACE", "none.json"], 2, "none.json"),
        (["auto", "none.py"], 2, "none.py"),
        (["auto", "train.txt"], 2, "no Python script"),
        (["auto", "train.py", "--epochs", "3"], 2, "cannot be used with"),
        (["auto", "train.py", "--format", "json"], 2, "--format"),
        (["auto", "--", "3"], 2, "required"),
        (["auto", "train.py", "--budget", "much"], 2, "much"),
    ],
)
def test_exit_codes_are_those_of_the_program(arguments, code, words, trace, tmp_path):
    script(tmp_path)
    ran = program(tmp_path, *(trace if a == "TRACE" else a for a in arguments))
    assert ran.returncode == code, ran.stderr
    assert words in ran.stdout + ran.stderr


def test_verbs_begin_without_pytorch():
    line = "import sys; from plimsoll import command_line; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0


def test_a_closed_pipe_ends_in_peace(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as closed:
        ran = subprocess.run(
            [PROGRAM, "networks"],
            stdout=closed,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_ctrl_c_saves_and_stops(tmp_path):
    running = subprocess.Popen(
        [PROGRAM, "auto", "--network", "resnet20", "--study", "s", "--epochs", "5000"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said


def test_a_script_runs_as_it_does_and_is_reported(tmp_path):
    script(tmp_path)
    ran = program(tmp_path, "auto", "train.py", "--", "3", "--last")
    assert ran.returncode == 0, ran.stderr
    assert "trained __main__ 3 --last" in ran.stdout
    assert "batch 8, lr unchanged" in ran.stderr
    page = (tmp_path / "studies/train/report.html").read_text()
    assert "studies/train/report.html" in ran.stdout
    report = json.loads(re.search(r'id="report">(.*?)</script>', page, re.S)[1])
    assert [view["name"] for view in report["iteration"]["timelines"]] == ["predicted", "measured"]
    assert len(report["policies"]["rows"]) > 5


def test_options_stand_for_the_arguments_of_tune(tmp_path):
    script(tmp_path, more=', budget="1KiB", seconds=0.5')
    ran = program(tmp_path, "auto", "train.py", "--budget", "99%", "--link", "1GB/s", "--study", "mine", "-q")
    assert ran.returncode == 0, ran.stderr
    assert "plimsoll:" not in ran.stderr
    page = (tmp_path / "mine/report.html").read_text()
    report = json.loads(re.search(r'id="report">(.*?)</script>', page, re.S)[1])
    assert report["about"]["budget_bytes"] > 2000


@pytest.mark.parametrize(
    ("text", "more", "arguments", "code", "words"),
    [
        (SCRIPT, "", [], 2, "no budget is given"),
        (SCRIPT, "", ["--budget", "1KiB"], 3, "no plan for"),
        pytest.param(SCRIPT + "\nsys.exit(7)", ', budget="100%"', [], 7, "", marks=pytest.mark.slow),
        pytest.param(
            SCRIPT + "\nsys.exit('enough')", ', budget="100%"', [], 1, "enough", marks=pytest.mark.slow
        ),
        (SCRIPT + "\n1 / 0", ', budget="100%"', [], 1, "ZeroDivisionError"),
        (SCRIPT + "\nraise KeyboardInterrupt", ', budget="100%"', [], 130, "stopped"),
        ("print(1)", "", [], 2, "without a call of `plimsoll.tune`"),
    ],
)
def test_how_a_script_may_end(text, more, arguments, code, words, tmp_path):
    script(tmp_path, text, more)
    ran = program(tmp_path, "auto", "train.py", *arguments)
    assert ran.returncode == code, ran.stderr
    assert words in ran.stderr
    planned = code not in (2, 3)
    assert (tmp_path / "studies/train/report.html").exists() == planned
    if words.startswith("no "):
        assert re.search(r"\(train\.py:\d+\)", ran.stderr)


def test_the_study_of_a_network_is_left_alone(tmp_path):
    script(tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s/chosen.config.json").write_text("{}")
    ran = program(tmp_path, "auto", "train.py", "--study", "s")
    assert ran.returncode == 2
    assert "is the study of a network" in ran.stderr
    assert not (tmp_path / "s/report.html").exists()


def test_without_the_program_a_budget_must_be_given():
    task = build("mlp")
    with pytest.raises(plimsoll.BadInput, match="no budget is given"):
        plimsoll.tune(task.loss, task.model, None, task.batches[0])
