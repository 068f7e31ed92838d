"""Runs that end, or have ended."""

import subprocess

from flcore.utils.runs.files import write_h5


def finish(files, accuracy=(0.5,)):
    write_h5(files.h5, {"rs_test_acc": accuracy})
    files.finish("finished")
    return files


def pid_of_the_dead():
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid
