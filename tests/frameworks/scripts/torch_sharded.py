import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import reshape_hooks

distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
reshape_hooks.Elastic(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
