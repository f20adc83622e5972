"""What a report of 30 records costs: seconds of CPU (user and system) of `python -m mixerlab.sweeps.report.report`.

    python -m mixerlab.benchmarks.report_time [RESULTS] [--times 5]

RESULTS is a folder with records. Without it, 30 tiny runs are trained first: five mixers, six tasks, three learning
rates and two seeds, a few minutes on a CPU. The report is written to a folder of its own; a line for each time.
"""

import argparse
import resource
import subprocess
import sys
import tempfile

TASKS = "icr,ncr,fcr,mem,cmp,sc"
MIXERS = "attn,parallax,gdn,mamba,mesa"
SIZES = "task.seq_len=40 task.num_train_examples=64 task.num_val_examples=32 task.num_test_examples=32"
TINY = f"{SIZES} model.d_model=16 trainer.epochs=4 trainer.batch_size=16 trainer.accelerator=cpu seed=[0,1]"


def train(results: str) -> None:
    """30 finished records in `results`."""
    command = [sys.executable, "-m", "mixerlab", "-m", f"mixer={MIXERS}", f"task={TASKS}", f"results_dir={results}"]
    subprocess.run([*command, *TINY.split()], check=True, stdout=subprocess.DEVNULL)


def seconds_of_report(results: str, out: str) -> tuple[float, float]:
    """User and system seconds of one report, its imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "mixerlab.sweeps.report.report", results, "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.benchmarks.report_time", description=__doc__.splitlines()[0]
    )
    parser.add_argument("results", nargs="?", help="a folder with records (default: 30 tiny runs, trained first)")
    parser.add_argument("--times", type=int, default=5, help="how often (default: 5)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = given.results or f"{folder}/results"
        if given.results is None:
            train(results)
        for _ in range(given.times):
            user, system = seconds_of_report(results, f"{folder}/report")
            print(f"{user + system:.2f} s of CPU: {user:.2f} user, {system:.2f} system", flush=True)


if __name__ == "__main__":
    main()
