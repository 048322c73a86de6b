"""Workers run tasks on batches of items: threads, local processes or Ray, with equal results.

    with open_workers("processes:8") as workers:
        results = workers.map(task, batch, problem)

A task is a frozen dataclass that a module defines, and a pure function: `task(problem, items)`
returns a list with one result per item. Results depend neither on how the batch is cut into chunks
nor on which worker runs a chunk, so one, two or eight workers of any kind give the same list.
"""

from placewright.workers.task import Items, Task
from placewright.workers.worker_factory import as_workers, open_workers
from placewright.workers.worker_pool import Workers
from placewright.workers.worker_spec import WorkerSpec

__all__ = ["Items", "Task", "WorkerSpec", "Workers", "as_workers", "open_workers"]
