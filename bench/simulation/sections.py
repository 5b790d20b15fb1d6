"""The parts of a simulation that `bench.simulate` prints: each runs, shows its table and gives its figures."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import summary
from bench.command import CannotMeasure
from bench.simulation import growth, herd, overhead, plots, speed, starvation
from bench.simulation.ceiling import Ceiling
from bench.simulation.inputs import Input
from bench.simulation.instant import make_cache, replay
from bench.simulation.price import Price
from bench.simulation.report import figures_of
from bench.simulation.world import make_world
from scheduler.config import SchedulerConfig

Figures = dict[str, float]

SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all parts share; the first of `configs` is the one that the goals are asked of."""

    configs: Mapping[str, SchedulerConfig]
    price: Price
    seed: int
    pools: Sequence[int]
    page_tokens: int
    plots: Path | None

    @property
    def config(self) -> SchedulerConfig:
        """The scheduler that the goals are asked of."""
        return next(iter(self.configs.values()))


def w14(setting: Setting) -> Figures:
    """The herd."""
    redundant = herd.redundant_prefill(setting.config, setting.price, seed=setting.seed)
    figures = {"w14_redundant_prefill_tokens": redundant}
    _show("W14: 64 questions at once on one new document", {"": figures})
    return figures


def w13(setting: Setting) -> Figures:
    """Starvation in bursts, medians over seeds; then the frontier under sustained overload."""
    over_fcfs, hot_share = [], []
    for seed in range(setting.seed, setting.seed + SEEDS):
        mix = starvation.Mix(setting.price, seed)
        capacity_per_s = mix.capacity_per_s(setting.config)
        runs = {
            name: starvation.waiting_of(mix.run(config, mix.burst_arrivals(capacity_per_s)), horizon_s=mix.horizon_s)
            for name, config in starvation.variants(setting.config).items()
        }
        _show(
            f"W13, seed {seed}: bursts of 1.5 in a load of 0.9, {capacity_per_s:.1f} requests a second being 1",
            {name: _waiting_figures(waiting) for name, waiting in runs.items()},
        )
        ours, fcfs, unbounded = runs.values()
        over_fcfs.append(ours.cold_p99_ms / fcfs.cold_p99_ms)
        hot_share.append(ours.hot_per_s / unbounded.hot_per_s)
        if setting.plots is not None and seed == setting.seed:
            times = {f"{name}, {kind}": values for name, each in runs.items() for kind, values in each.times_ms.items()}
            print(f"drawn: {plots.waiting_times(setting.plots / 'w13.png', 'W13: waiting times', times)}")
    mix = starvation.Mix(setting.price, setting.seed, horizon_s=30.0)
    arrivals_per_s = mix.capacity_per_s(setting.config)
    runs = {
        name: starvation.waiting_of(mix.run(config, mix.overload_arrivals(arrivals_per_s)), horizon_s=mix.horizon_s)
        for name, config in starvation.frontier(setting.config).items()
    }
    _show("W13 under a sustained load of 1.2", {name: _waiting_figures(waiting) for name, waiting in runs.items()})
    return {
        "w13_cold_p99_over_fcfs": statistics.median(over_fcfs),
        "w13_hot_throughput_share": statistics.median(hot_share),
    }


def w15(setting: Setting) -> Figures:
    """The tree's price where nothing is shared."""
    figures = overhead.overhead_percent(setting.config, setting.price, seed=setting.seed)
    _show("W15: the tree without any reuse, in percent of the steps' time", {"": figures})
    return figures


def growing(setting: Setting) -> Figures:
    """The scheduler's time for a step as things grow tenfold."""
    times_ms = {
        name: statistics.median(growth.step_ms(size, setting.config, setting.price, seed=seed) for seed in range(3))
        for name, size in growth.GROWN.items()
    }
    rows = {name: {"step_ms": value, "over_base_ratio": value / times_ms["base"]} for name, value in times_ms.items()}
    _show("the scheduler's time for a step", rows)
    return {f"growth_{_slug(name)}_{figure}": value for name, row in rows.items() for figure, value in row.items()}


def simulating(setting: Setting) -> Figures:
    """The simulator's own speed."""
    figures = {"speed_short_per_s": speed.requests_per_s(setting.config, setting.price, seed=setting.seed)}
    _show("requests simulated in a second, short prompts", {"": figures})
    return figures


def compared(setting: Setting, given: Input) -> Figures:
    """One input with every policy and pool, side by side."""
    columns: dict[str, Figures] = {}
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in setting.configs}
    pools = setting.pools or given.pools
    for pool_tokens, (name, config) in itertools.product(pools, setting.configs.items()):
        world = make_world(
            given.make(), config, setting.price, pool_tokens=pool_tokens, page_tokens=setting.page_tokens
        )
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        world.run()
        figures = figures_of(world)
        requests = len(world.account.outcomes)
        figures["wall_requests_per_s"] = requests / (time.perf_counter() - began_s)
        figures["cpu_requests_per_s"] = requests / (time.process_time() - began_cpu_s)
        columns[_label(name, pool_tokens, setting.configs, pools)] = figures
        lines[name].append((pool_tokens, figures["hit_percent"]))
    _show(given.name, columns)
    if setting.plots is not None:
        print(f"drawn: {plots.hit_rates(setting.plots / f'{given.name}.png', given.name, lines)}")
    return _named(given.name, columns)


def instant(setting: Setting, given: Input) -> Figures:
    """The tree alone over pool sizes, beside two ideals of the same pool.

    Raises:
        CannotMeasure: the input is no trace.
    """
    if given.prompts is None:
        raise CannotMeasure(f"--instant is for traces, and {given.name} is none")
    ceiling = Ceiling(given.prompts, block_tokens=given.block_tokens)
    columns: dict[str, Figures] = {}
    for pool_tokens in setting.pools or given.pools:
        blocks = pool_tokens // given.block_tokens
        cache = make_cache(setting.config, num_pages=blocks, page_tokens=given.block_tokens)
        figures = {"hit_percent": replay(given.prompts(), cache).percent}
        if given.cut_prompts is not None:
            cache = make_cache(setting.config, num_pages=blocks, page_tokens=given.block_tokens)
            figures["hit_with_partial_pages_percent"] = replay(given.cut_prompts(), cache).percent
        figures["ideal_lru_percent"] = ceiling.hits(pool_blocks=blocks, rule="lru").percent
        figures["farthest_next_use_percent"] = ceiling.hits(pool_blocks=blocks, rule="farthest").percent
        columns[f"{blocks} pages"] = figures
    _show(f"{given.name}, the tree alone, pages of {given.block_tokens} tokens", columns)
    if setting.plots is not None:
        names = list(next(iter(columns.values())))
        pools = setting.pools or given.pools
        lines = {
            name: [(pool, each[name]) for pool, each in zip(pools, columns.values(), strict=True)] for name in names
        }
        path = setting.plots / f"{given.name}_instant.png"
        print(f"drawn: {plots.hit_rates(path, f'{given.name}, the tree alone', lines)}")
    return _named(f"{given.name}_instant", columns)


def _waiting_figures(waiting: starvation.Waiting) -> Figures:
    return {
        "ttft_cold_p50_ms": waiting.cold_p50_ms,
        "ttft_cold_p99_ms": waiting.cold_p99_ms,
        "ttft_hot_p99_ms": waiting.hot_p99_ms,
        "hot_answered_per_s": waiting.hot_per_s,
    }


def _label(name: str, pool_tokens: int, configs: Mapping[str, SchedulerConfig], pools: Sequence[int]) -> str:
    parts = [name] if len(configs) > 1 else []
    parts += [f"{pool_tokens / 1000:g}k"] if len(pools) > 1 else []
    return " ".join(parts)


def _named(name: str, columns: Mapping[str, Figures]) -> Figures:
    return {
        "_".join(filter(None, (_slug(name), _slug(label), figure))): value
        for label, figures in columns.items()
        for figure, value in figures.items()
    }


def _slug(text: str) -> str:
    return "_".join("".join(each if each.isalnum() else " " for each in text.lower()).split())


def _show(title: str, columns: Mapping[str, Figures]) -> None:
    print(f"\n{title}\n{summary.table(columns)}", flush=True)
