"""Jobs: engine work in a worker process, with progress, cancel by killing, time and memory limits, and restart."""

from .codes import ROWS
from .facade import AsyncWorker, run_job
from .handle import JobHandle, JobOutcome
from .pool import Worker
from .tasks import TASKS, Progress

__all__ = ["ROWS", "TASKS", "AsyncWorker", "JobHandle", "JobOutcome", "Progress", "Worker", "run_job"]
