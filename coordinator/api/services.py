"""Names the services that the HTTP handlers call, each with its operations.

All methods are synchronous and may be called from any thread; the handlers call them in threads of their own. They
raise only `coordinator.errors`: `Rejected` (its sentence and status are shown), `Conflict` (409), `Transient` (503),
`Unauthorized` (401). Everything returned can be written as JSON as it is. `coordinator.service.Coordinator` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from coordinator.api.access import UserService
from coordinator.api.coordinator_status import CoordinatorStatus
from coordinator.api.fleet import Fleet
from coordinator.api.history import History
from coordinator.api.job_output import JobOutput
from coordinator.api.job_reads import JobReads
from coordinator.api.node_drains import NodeDrains
from coordinator.api.operator_requests import OperatorRequests
from coordinator.api.profile_tables import ProfileTables
from coordinator.api.queue_rights import QueueRights
from coordinator.api.reservations import Reservations
from coordinator.api.signed_messages import SignedMessages
from coordinator.api.simulations import Simulations
from coordinator.api.slaml_requests import SlamlRequests
from coordinator.api.submissions import Submissions
from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.caller import Caller


@dataclass(frozen=True)
class UserServices:
    """Holds what users ask for. Each service judges its caller; an operation that is not here is there for nobody."""

    submissions: Submissions
    operator: OperatorRequests
    drains: NodeDrains
    reservations: Reservations
    slamls: SlamlRequests
    jobs: JobReads
    output: JobOutput
    fleet: Fleet
    history: History
    rights: QueueRights
    profiles: ProfileTables
    simulations: Simulations
    status: CoordinatorStatus


@dataclass(frozen=True)
class Services(UserServices):
    """Everything that handlers call: also what sidecars, node agents and Volcano ask, who prove themselves otherwise.

    As they are, the services of users are those of the holder of the coordinator's token, who may do everything.
    """

    messages: SignedMessages
    extender: VolcanoExtender

    def of_caller(self, caller: Caller) -> UserServices:
        """Return the services of one user, who may change own jobs, and sees little of others'."""
        access = self.jobs.access.of_caller(caller)
        found = {field.name: getattr(self, field.name) for field in fields(UserServices)}
        restricted: dict[str, Any] = {
            name: service.of_access(access) if isinstance(service, UserService) else service
            for name, service in found.items()
        }
        return UserServices(**restricted)
