"""Work that continues after the response: indexing, checks, backfills, training, snapshots.

A job is on disk, state/jobs/ID.json, before it is acknowledged, so that what was promised outlives the process. After a
restart every unfinished job resumes: indexing after the last batch that was stored, a backfill in its plan, a training
after its last epoch, others from their start.

Several services may share a workspace (``ServiceSettings.shared``). Then the files are what counts: they are read again
when another service has replaced them, and changed under a lock. A service that runs a job shows every second that it
is alive; if it does not for ten, another one takes the job over, and the first may no longer write for it.
Needs no web framework: the command line reads the files of jobs without one.

    records          a job and its file
    queue            who runs what, and when
    running          a job as its own work sees it
    work             what each kind does: index, check, backfill, training
    process          long work in a process of its own, which gives way to searches
    signs_of_life    which services are alive
    history          vectors by version over time
"""

from fixstar.service.jobs.history import History, HistoryPoint
from fixstar.service.jobs.queue import Jobs
from fixstar.service.jobs.records import Job, JobFiles, Kind
from fixstar.service.jobs.signs_of_life import SignsOfLife
from fixstar.service.jobs.training import planned_training, require_no_training

__all__ = [
    "History",
    "HistoryPoint",
    "Job",
    "JobFiles",
    "Jobs",
    "Kind",
    "SignsOfLife",
    "planned_training",
    "require_no_training",
]
