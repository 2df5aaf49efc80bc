"""Adds our extender to the text of Volcano's scheduler configuration, and takes it out again. Pure.

Promises: whatever else is written there stays, with its comments; what is added carries the comment `MARK`, so that it
can be taken out again; both may be repeated. A text that is laid out in a way in which it cannot be edited in place is
written anew without its comments, which is reported. Called by `volcano_connection`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from coordinator.errors import Rejected

Doc = dict[str, Any]

MARK = "added by volcano-reshape"
EXTENDER = "extender"
OF_US = "reshape-coordinator"  # in the address that our extender is asked at
ADDRESS = "extender.urlPrefix"
TIMEOUT = "extender.httpTimeout"
ARGUMENTS: Doc = {
    ADDRESS: "http://reshape-coordinator.reshape-system.svc:8080/v1/extender",
    TIMEOUT: "300ms",
    "extender.ignorable": True,  # Volcano takes the text "true" for false
    "extender.jobEnqueueableVerb": "jobEnqueueable",
    "extender.preemptableVerb": "preemptable",
    "extender.reclaimableVerb": "reclaimable",
    "extender.queueOverusedVerb": "queueOverused",
}
THEIRS = frozenset({TIMEOUT, "extender.predicateVerb"})  # what an administrator may choose otherwise
ENQUEUE = "enqueue"  # the action in which Volcano asks whether a job may start
# Plugins that let a job in. One that says yes skips all later tiers, so our entry must be in the tier of the first.
ADMITTING = frozenset({"overcommit", "proportion", "capacity", "capacity-card", "resourcequota", "sla"})
EACH_POD = "predicateErrorCacheEnable"
EACH_POD_ACTIONS = ("allocate", "backfill")


@dataclass(frozen=True, slots=True)
class EditedConf:
    """A scheduler configuration after an edit."""

    text: str
    keeps_comments: bool = True
    notes: tuple[str, ...] = ()  # sentences about what could not be set


def with_extender(text: str) -> EditedConf:
    """Return it with our extender. `Rejected` with a sentence if there is no place for it."""
    conf = _parsed_conf(text)
    tier = _tier_that_admits(conf)
    if any(_is_foreign(plugin) for plugin in _all_plugins(conf)):
        raise Rejected(
            "Volcano takes one extender only, and its scheduler configuration names another one: running jobs go on. "
            "Take that one out first, or leave this cluster as it is."
        )
    notes = _notes_on(conf)
    wanted = copy.deepcopy(conf)
    ours = next((plugin for plugin in _all_plugins(conf) if _is_ours(plugin)), None)
    entry = {"name": EXTENDER, "arguments": _arguments_of_ours(ours)}
    for each in wanted["tiers"]:
        each["plugins"] = [plugin for plugin in each["plugins"] if not _is_ours(plugin)]
    wanted["tiers"][tier]["plugins"].append(entry)
    actions = [name for name in EACH_POD_ACTIONS if EACH_POD not in _arguments_of_action(conf, name)]
    for name in actions:
        _ask_for_each_pod(wanted, name)
    if entry in conf["tiers"][tier]["plugins"] and sum(map(_is_ours, _all_plugins(conf))) == 1 and not actions:
        return EditedConf(text, notes=notes)

    def edit() -> str:
        edited = _without_ours(text)
        edited = _with_item(edited, _node_of_plugins(edited, tier), entry)
        for name in actions:
            edited = _with_each_pod(edited, name)
        return edited

    return _checked_edit(edit, wanted, notes)


def without_extender(text: str) -> EditedConf:
    """Return it without what `with_extender` added, or what was written by hand to ask our extender."""
    conf = _parsed_conf(text)
    wanted = copy.deepcopy(conf)
    for tier in wanted["tiers"]:
        tier["plugins"] = [plugin for plugin in tier["plugins"] if not _is_ours(plugin)]

    edited = EditedConf(text) if wanted == conf else _checked_edit(lambda: _without_ours(text), wanted, ())
    return EditedConf(_without_marked(edited.text), edited.keeps_comments)


def asks_before_start(text: str) -> bool:
    """Return whether Volcano asks anybody if a job may start: it does so in the action `enqueue`."""
    try:
        return ENQUEUE in _action_names(_parsed_conf(text))
    except Rejected:
        return False


# what it holds


def _parsed_conf(text: str) -> Doc:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Rejected(f"Volcano's scheduler configuration is no YAML ({_first_line(error)}): mend it first.") from None
    if not isinstance(found, dict) or not isinstance(found.get("tiers"), list):
        raise Rejected("Volcano's scheduler configuration has no list `tiers`: restore Volcano's own, then try again.")
    for tier in found["tiers"]:
        plugins = tier.get("plugins") if isinstance(tier, dict) else None
        if not isinstance(plugins, list) or not all(isinstance(plugin, dict) for plugin in plugins):
            raise Rejected("A tier of Volcano's scheduler configuration has no list `plugins`: mend it first.")
    return found


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _all_plugins(conf: Mapping[str, Any]) -> Iterator[Doc]:
    for tier in conf["tiers"]:
        yield from tier["plugins"]


def _is_ours(plugin: object) -> bool:
    if not isinstance(plugin, dict) or plugin.get("name") != EXTENDER:
        return False
    arguments = plugin.get("arguments")
    return isinstance(arguments, dict) and OF_US in str(arguments.get(ADDRESS))


def _is_foreign(plugin: Mapping[str, Any]) -> bool:
    return plugin.get("name") == EXTENDER and not _is_ours(plugin)


def _tier_that_admits(conf: Mapping[str, Any]) -> int:
    """Return the index of the tier for our entry; without a plugin that lets jobs in it is the last one."""
    if not conf["tiers"]:
        raise Rejected(
            "Volcano's scheduler configuration has no tier of plugins: restore Volcano's own, then try again."
        )
    for index, tier in enumerate(conf["tiers"]):
        if any(plugin.get("name") in ADMITTING for plugin in tier["plugins"]):
            return index
    return len(conf["tiers"]) - 1


def _arguments_of_ours(ours: Mapping[str, Any] | None) -> Doc:
    """Return our arguments, with what an administrator chose in an entry of ours that is there already."""
    had = (ours or {}).get("arguments") or {}
    return {**ARGUMENTS, **{name: value for name, value in had.items() if name in THEIRS}}


def _action_names(conf: Mapping[str, Any]) -> list[str]:
    return [name.strip() for name in str(conf.get("actions") or "").split(",")]


def _notes_on(conf: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if ENQUEUE not in _action_names(conf):
        notes.append(
            "Its `actions` lack `enqueue`, so Volcano asks nobody before it starts a job: jobs of ours start before "
            "they are decided, and wait in their pods. Add it in front of `allocate` if your cluster bears it."
        )
    remembers = [name for name in EACH_POD_ACTIONS if _arguments_of_action(conf, name).get(EACH_POD, False)]
    if remembers:
        notes.append(
            f"`{EACH_POD}: true` of action {' and '.join(remembers)} stays as it is: jobs of several pods can start on "
            "one node only."
        )
    return tuple(notes)


def _action_configuration(conf: Mapping[str, Any], action: str) -> Doc | None:
    configurations = conf.get("configurations")
    if not isinstance(configurations, list):
        return None
    return next((each for each in configurations if isinstance(each, dict) and each.get("name") == action), None)


def _arguments_of_action(conf: Mapping[str, Any], action: str) -> Doc:
    found = (_action_configuration(conf, action) or {}).get("arguments")
    return found if isinstance(found, dict) else {}


def _ask_for_each_pod(conf: Doc, action: str) -> None:
    """Let Volcano look at each pod of a task by itself: pods of a gang are pinned to different nodes."""
    found = _action_configuration(conf, action)
    if found is None:
        conf["configurations"] = [*(conf.get("configurations") or []), _configuration_of(action)]
    else:
        found["arguments"] = {**(found.get("arguments") or {}), EACH_POD: False}


def _configuration_of(action: str) -> Doc:
    return {"name": action, "arguments": {EACH_POD: False}}


# its text


def _checked_edit(edit: Callable[[], str], wanted: Mapping[str, Any], notes: tuple[str, ...]) -> EditedConf:
    """Return the text edited in place if that says what is wanted, else all of it written anew."""
    try:
        text = edit()
        if yaml.safe_load(text) == wanted:
            return EditedConf(text, notes=notes)
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, StopIteration):
        pass  # laid out in a way that `edit` does not know
    return EditedConf(yaml.safe_dump(wanted, sort_keys=False), keeps_comments=False, notes=notes)


def _child_node(node: yaml.CollectionNode, name: str) -> yaml.CollectionNode:
    child: yaml.CollectionNode = next(value for key, value in node.value if key.value == name)
    return child


def _root_node(text: str) -> yaml.CollectionNode:
    root: Any = yaml.compose(text, yaml.SafeLoader)
    found: yaml.CollectionNode = root
    return found


def _node_of_plugins(text: str, tier: int) -> yaml.CollectionNode:
    tiers = _child_node(_root_node(text), "tiers")
    return _child_node(tiers.value[tier], "plugins")


def _with_item(text: str, sequence: yaml.CollectionNode, item: Doc) -> str:
    """Add an item at the end of a sequence, in the style of that sequence."""
    if sequence.flow_style:
        close = sequence.end_mark.index - 1
        comma = ", " if sequence.value else ""
        return f"{text[:close]}{comma}{_is_flow(item)}{text[close:]}"
    return _with_lines(text, _last_line(sequence), _as_block(item, sequence.start_mark.column))


def _with_each_pod(text: str, action: str) -> str:
    root = _root_node(text)
    conf = yaml.safe_load(text)
    if not conf.get("configurations"):
        block = ["configurations:\n", *_as_block(_configuration_of(action), 0)]
        before = next((_last_line(value) for key, value in root.value if key.value == "actions"), -1)
        return _with_lines(text, before, block)
    configurations = _child_node(root, "configurations")
    found = next((each for each in configurations.value if _child_node(each, "name").value == action), None)
    if found is None:
        return _with_item(text, configurations, _configuration_of(action))
    arguments = _child_node(found, "arguments")
    if arguments.flow_style:
        close = arguments.end_mark.index - 1
        comma = ", " if arguments.value else ""
        return f"{text[:close]}{comma}{EACH_POD}: false{text[close:]}"
    line = f"{' ' * arguments.start_mark.column}{EACH_POD}: false  # {MARK}\n"
    return _with_lines(text, _last_line(arguments), [line])


def _as_block(item: Doc, column: int) -> list[str]:
    first, *rest = yaml.safe_dump(item, sort_keys=False, width=200).splitlines()
    lead = " " * column
    return [f"{lead}- {first}  # {MARK}\n", *(f"{lead}  {line}\n" for line in rest)]


def _is_flow(item: Doc) -> str:
    return yaml.safe_dump(item, sort_keys=False, default_flow_style=True, width=10_000).strip()


def _with_lines(text: str, after: int, more: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    if after >= 0 and not lines[after].endswith("\n"):
        lines[after] += "\n"
    return "".join([*lines[: after + 1], *more, *lines[after + 1 :]])


def _last_line(node: yaml.Node) -> int:
    """Return the line on which it ends; PyYAML's end of a block is where the next one begins, after all comments."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(node, yaml.MappingNode) else last)


def _without_ours(text: str) -> str:
    """Take our entries out of their sequences, last first, so that the places of the others hold."""
    conf = yaml.safe_load(text)
    tiers = _child_node(_root_node(text), "tiers")
    for tier in reversed(range(len(tiers.value))):
        sequence = _child_node(tiers.value[tier], "plugins")
        for index in reversed(range(len(sequence.value))):
            if _is_ours(conf["tiers"][tier]["plugins"][index]):
                text = _without_item(text, sequence, index)
    return text


def _without_item(text: str, sequence: yaml.CollectionNode, index: int) -> str:
    item = sequence.value[index]
    if sequence.flow_style:
        start = sequence.value[index - 1].end_mark.index if index else item.start_mark.index
        end = item.end_mark.index
        if index == 0 and len(sequence.value) > 1:
            end = sequence.value[1].start_mark.index
        return text[:start] + text[end:]
    lines = text.splitlines(keepends=True)
    return "".join(lines[: item.start_mark.line] + lines[_last_line(item) + 1 :])


def _without_marked(text: str) -> str:
    """Take out the settings of actions that carry our mark, and their list if nothing is left in it."""
    after = _without_marked_lines(text)
    conf = yaml.safe_load(after)
    if "configurations" in conf and conf["configurations"] is None:
        key = next(key for key, _ in _root_node(after).value if key.value == "configurations")
        lines = after.splitlines(keepends=True)
        return "".join(lines[: key.start_mark.line] + lines[key.start_mark.line + 1 :])
    return after


def _without_marked_lines(text: str) -> str:
    configurations = next((value for key, value in _root_node(text).value if key.value == "configurations"), None)
    lines = text.splitlines(keepends=True)
    if configurations is None or configurations.flow_style or not configurations.value:
        return text
    for item in reversed(configurations.value):
        first = item.start_mark.line
        last = _last_line(item)
        if MARK in lines[first]:
            del lines[first : last + 1]
            continue
        for number in reversed(range(first, last + 1)):
            if MARK in lines[number]:
                del lines[number]
    return "".join(lines)
