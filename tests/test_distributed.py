"""DDP and FSDP2 over two gloo processes. All scenarios run in one pair of processes; each test reads one
result."""

from __future__ import annotations

import copy
import gc
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import transcast as tc
from layer import data
from transcast import FP8Linear

RANKS = 2
WIDTH, ODD = 64, 65


def model(**kwargs) -> nn.Sequential:
    """Output features 65 and 1: no multiple of the ranks, and fewer than them."""
    torch.manual_seed(0)
    sizes = [(WIDTH, ODD), (ODD, 32), (32, 1)]
    return nn.Sequential(*(FP8Linear(k, n, **kwargs) for k, n in sizes))


def sharded(net: nn.Module, **kwargs) -> nn.Module:
    for layer in net:
        fully_shard(layer, **kwargs)
    return fully_shard(net, **kwargs)


def batch(seed: int) -> torch.Tensor:
    return data(17, WIDTH, seed=10 * seed + dist.get_rank())


def averaged_gradients(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net = copy.deepcopy(net)
    net(x).square().mean().backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    return [p.grad / RANKS for p in net.parameters()]


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# --- what the processes do ----------------------------------------------------------------------------------


def ddp_averages_gradients() -> None:
    net, x = model(), batch(0)
    wanted = averaged_gradients(net, x)
    parallel = DistributedDataParallel(net)
    parallel(x).square().mean().backward()
    for p, grad in zip(net.parameters(), wanted):
        torch.testing.assert_close(p.grad, grad)


def fsdp2_equals_one_process() -> None:
    plain, x = model(), batch(0)
    wanted = averaged_gradients(plain, x)
    net = sharded(copy.deepcopy(plain))
    y = net(x)
    assert torch.equal(y, plain(x))
    y.square().mean().backward()
    for p, grad in zip(net.parameters(), wanted):
        torch.testing.assert_close(full(p.grad), grad)


def fsdp2_shards_bytes() -> None:
    net, whole = sharded(model()), model()
    rows = [p.to_local().shape[0] for p in net.parameters() if p.dim() == 2]
    assert rows == ([33, 16, 1] if dist.get_rank() == 0 else [32, 16, 0]), rows
    local = torch.tensor(sum(p.to_local().nbytes for p in net.parameters()))
    dist.all_reduce(local)
    assert local.item() == sum(p.nbytes for p in whole.parameters())
    assert list(net.state_dict()) == list(whole.state_dict())


def fsdp2_does_not_grow() -> None:
    net = sharded(model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def live_tensors_after(steps: int) -> int:
        for step in range(steps):
            optimizer.zero_grad()
            net(batch(step)).square().mean().backward()
            optimizer.step()
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    first = live_tensors_after(2)
    assert live_tensors_after(4) == first


def fsdp2_mixed_precision() -> None:
    net = sharded(model(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    y = net(batch(0))
    y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 and full(p.grad).isfinite().all() for p in net.parameters())


def fsdp2_cached_weights_follow_the_optimizer() -> None:
    cached, fresh = sharded(model()), sharded(model())
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.1, fused=True) for net in (cached, fresh)]
    with tc.cached_weights(cached):
        outputs = []
        for step in range(3):
            for micro_batch in range(2):
                pair = [net(batch(micro_batch)) for net in (cached, fresh)]
                assert torch.equal(*pair), (step, micro_batch)
                for y in pair:
                    y.square().mean().backward()
            outputs.append(pair[0].detach())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert not torch.equal(outputs[0], outputs[1])


def fsdp2_refuses_main_grad() -> None:
    net = sharded(model(wgrad_into="main_grad"))
    for p in net.parameters():
        p.main_grad = torch.zeros(p.shape)
    with pytest.raises(RuntimeError, match=r"the weight has no main_grad.*under FSDP2 \(fully_shard\)"):
        net(batch(0)).sum().backward()


def dtensor_refuses_main_grad() -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    layer = FP8Linear(WIDTH, ODD, bias=False, recipe=None, wgrad_into="main_grad")
    layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Replicate()]))
    layer.weight.main_grad = torch.zeros(ODD, WIDTH)
    x = distribute_tensor(data(17, WIDTH), mesh, [Replicate()])
    with pytest.raises(RuntimeError, match="the weight is a DTensor; main_grad needs plain parameters"):
        layer(x).sum().backward()


SCENARIOS = [
    ddp_averages_gradients,
    fsdp2_equals_one_process,
    fsdp2_shards_bytes,
    fsdp2_does_not_grow,
    fsdp2_mixed_precision,
    fsdp2_cached_weights_follow_the_optimizer,
    fsdp2_refuses_main_grad,
    dtensor_refuses_main_grad,
]


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    init_device_mesh("cpu", (RANKS,))
    failures = {}
    for scenario in SCENARIOS:
        try:
            scenario()
            failures[scenario.__name__] = ""
        except Exception:
            failures[scenario.__name__] = traceback.format_exc()
    torch.save(failures, Path(folder, f"rank{rank}"))
    dist.destroy_process_group()


# --- what the tests read ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}") for rank in range(RANKS)]


def check(failures: list[dict[str, str]], scenario) -> None:
    for rank, of_rank in enumerate(failures):
        assert not of_rank[scenario.__name__], f"rank {rank}: {of_rank[scenario.__name__]}"


def test_ddp(failures):
    check(failures, ddp_averages_gradients)


def test_G3_fsdp2_equals_one_process(failures):
    check(failures, fsdp2_equals_one_process)


def test_G3_sharded_bytes_halve(failures):
    check(failures, fsdp2_shards_bytes)


def test_G3_no_growth(failures):
    check(failures, fsdp2_does_not_grow)


def test_fsdp2_mixed_precision(failures):
    check(failures, fsdp2_mixed_precision)


def test_L11_fsdp2_cached_weights(failures):
    check(failures, fsdp2_cached_weights_follow_the_optimizer)


def test_L12_fsdp2_refuses_main_grad(failures):
    check(failures, fsdp2_refuses_main_grad)
    check(failures, dtensor_refuses_main_grad)
