from ebbtide import errors as errors
from ebbtide.api.repositories import CollectedRepository as CollectedRepository
from ebbtide.api.repositories import PlannedRun as PlannedRun
from ebbtide.api.repositories import open_repository as open_repository
from ebbtide.api.repositories import open_store as open_store
from ebbtide.gc.report import RunReport as RunReport
from ebbtide.retention import Policy as Policy

__all__ = [
    "CollectedRepository",
    "PlannedRun",
    "Policy",
    "RunReport",
    "errors",
    "open_repository",
    "open_store",
]
