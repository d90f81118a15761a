# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The netlink spec (kmod/uapi/kbp.yaml) as checked Python objects.

This module reads and judges the spec; what is written from it lives in
uapi-gen.py. It knows the part of the YNL schema that our spec uses and refuses
everything else, so that a typing error can't vanish in a generated file.

Numbers follow the genetlink-legacy convention: attributes and operations count
from 1, notifications take numbers from the same row as requests, and the
entries of an enum count from 0. `value:` sets a number; the next ones follow.
"""

from dataclasses import dataclass, field
import re

import yaml

SCALARS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
ATTRIBUTE_TYPES = SCALARS + ("string", "binary", "flag", "nest", "pad")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
COUNTER_SET = "-stats"


class SpecError(Exception):
    """The spec is wrong; the message is one sentence for a person."""


@dataclass
class Named:
    """An enum entry, an attribute or an operation: a number with a name and a meaning."""

    name: str
    value: int
    doc: str = ""
    type: str = ""
    enum: str = ""
    nested: str = ""


@dataclass
class Group:
    """An enum or an attribute set."""

    name: str
    doc: str = ""
    items: list = field(default_factory=list)

    def names(self):
        return [item.name for item in self.items]

    def counters(self):
        """What counts in a set of counters: everything but the padding."""
        return [item for item in self.items if item.type != "pad"]


@dataclass
class Spec:
    """The whole family."""

    name: str
    version: int
    doc: str
    enums: list
    sets: list
    operations: list
    groups: list

    def counter_sets(self):
        return [group for group in self.sets if group.name.endswith(COUNTER_SET)]


class _Loader(yaml.SafeLoader):
    """Like SafeLoader, but a key that stands twice is an error."""


def _mapping(loader, node):
    seen = {}
    for key, _ in node.value:
        if key.value in seen:
            raise SpecError(f"line {key.start_mark.line + 1}: the key '{key.value}' stands twice in one mapping")
        seen[key.value] = True
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _keys(node, where, required, optional=()):
    """Refuse a mapping with missing or unknown keys."""
    if not isinstance(node, dict):
        raise SpecError(f"{where} is not a mapping")
    for key in required:
        if key not in node:
            raise SpecError(f"{where} has no '{key}'")
    for key in node:
        if key not in required and key not in optional:
            raise SpecError(f"{where} has the key '{key}', which this generator does not know")


def _list(node, where):
    if not isinstance(node, list) or not node:
        raise SpecError(f"{where} is not a list with at least one entry")
    return node


def _name(node, where, taken):
    name = node.get("name") if isinstance(node, dict) else None
    if not isinstance(name, str) or not NAME.match(name):
        raise SpecError(f"{where} has the name {name!r}; names are lower-case words joined by dashes")
    if name in taken:
        raise SpecError(f"{where} has the name '{name}' twice")
    return name


def _doc(node, where):
    """The doc text on one line."""
    doc = node.get("doc", "")
    if not isinstance(doc, str) or "*/" in doc:
        raise SpecError(f"{where} has a doc that is not plain text")
    return " ".join(doc.split())


def _value(node, where, following, highest):
    value = node.get("value", following)
    if not isinstance(value, int) or not following <= value <= highest:
        raise SpecError(f"{where} has the value {value!r}; it has to be a number from {following} to {highest}")
    return value


def _enums(nodes):
    enums = []
    for node in nodes:
        name = _name(node, "definitions", [enum.name for enum in enums])
        where = f"the definition '{name}'"
        _keys(node, where, ("type", "name", "entries"), ("doc",))
        if node["type"] != "enum":
            raise SpecError(f"{where} is of type '{node['type']}'; only enum is known")
        enum = Group(name, _doc(node, where))
        following = 0
        for entry in _list(node["entries"], f"'entries' of {where}"):
            entry_name = _name(entry, where, enum.names())
            entry_where = f"the entry '{entry_name}' of {where}"
            _keys(entry, entry_where, ("name",), ("doc", "value"))
            value = _value(entry, entry_where, following, 0xFFFFFFFF)
            enum.items.append(Named(entry_name, value, _doc(entry, entry_where)))
            following = value + 1
        enums.append(enum)
    return enums


def _attribute(node, where, taken, following):
    name = _name(node, where, taken)
    where = f"the attribute '{name}' of {where}"
    _keys(node, where, ("name", "type"), ("doc", "value", "enum", "nested-attributes", "checks"))
    kind = node["type"]
    if kind not in ATTRIBUTE_TYPES:
        raise SpecError(f"{where} is of the unknown type '{kind}'")
    if "enum" in node and kind not in SCALARS:
        raise SpecError(f"{where} has an enum but is no number")
    if (kind == "nest") != ("nested-attributes" in node):
        raise SpecError(f"{where} needs both, type nest and nested-attributes, or neither")
    value = _value(node, where, following, 0x3FFF)
    return Named(name, value, _doc(node, where), kind, node.get("enum", ""), node.get("nested-attributes", ""))


def _sets(nodes):
    sets = []
    for node in nodes:
        name = _name(node, "attribute-sets", [group.name for group in sets])
        where = f"the attribute set '{name}'"
        _keys(node, where, ("name", "attributes"), ("doc",))
        group = Group(name, _doc(node, where))
        following = 1
        for child in _list(node["attributes"], f"'attributes' of {where}"):
            group.items.append(_attribute(child, where, group.names(), following))
            following = group.items[-1].value + 1
        sets.append(group)
    return sets


def _check_references(enums, sets):
    enum_names = {enum.name for enum in enums}
    set_names = {group.name for group in sets}
    for group in sets:
        for item in group.items:
            where = f"the attribute '{item.name}' of the attribute set '{group.name}'"
            if item.enum and item.enum not in enum_names:
                raise SpecError(f"{where} refers to the enum '{item.enum}', which is not defined")
            if item.nested and item.nested not in set_names:
                raise SpecError(f"{where} nests the attribute set '{item.nested}', which is not defined")
            if group.name.endswith(COUNTER_SET) and item.type not in ("u64", "pad"):
                raise SpecError(f"{where} is no u64; a set named *{COUNTER_SET} holds counters only")
            if group.name.endswith(COUNTER_SET) and item.type == "u64" and not item.doc:
                raise SpecError(f"{where} has no doc; the manual's table of counters is made from it")


def _check_message(where, message, group):
    """The attributes of one request or reply have to be in the operation's set."""
    _keys(message, where, ("attributes",))
    names = _list(message["attributes"], f"'attributes' of {where}")
    for name in names:
        if name not in group.names():
            raise SpecError(f"{where} lists the attribute '{name}', which the attribute set '{group.name}' does not have")
        if names.count(name) > 1:
            raise SpecError(f"{where} lists the attribute '{name}' twice")


def _check_request(node, where, sets):
    _keys(node, where, ("name", "attribute-set"), ("doc", "value", "flags", "do", "dump"))
    group = next((group for group in sets if group.name == node["attribute-set"]), None)
    if group is None:
        raise SpecError(f"{where} refers to the attribute set '{node['attribute-set']}', which is not defined")
    for flag in node.get("flags", []):
        if flag not in ("admin-perm", "uns-admin-perm"):
            raise SpecError(f"{where} has the unknown flag '{flag}'")
    if "do" not in node and "dump" not in node:
        raise SpecError(f"{where} has neither 'do' nor 'dump'")
    for way in ("do", "dump"):
        if way in node:
            _keys(node[way], f"'{way}' of {where}", (), ("request", "reply"))
            for side, message in node[way].items():
                _check_message(f"the {side} of '{way}' of {where}", message, group)


def _check_notification(node, where, requests, groups):
    _keys(node, where, ("name", "notify", "mcgrp"), ("doc", "value"))
    if node["notify"] not in requests:
        raise SpecError(f"{where} notifies about the operation '{node['notify']}', which is not defined before it")
    if node["mcgrp"] not in groups:
        raise SpecError(f"{where} goes to the multicast group '{node['mcgrp']}', which is not defined")


def _operations(node, family, sets, groups):
    _keys(node, "'operations'", ("list", "enum-name", "name-prefix"))
    if (node["enum-name"], node["name-prefix"]) != (f"{family}-cmd", f"{family}-cmd-"):
        raise SpecError(f"'operations' has to have the enum-name '{family}-cmd' and the name-prefix '{family}-cmd-'")
    operations, requests = [], []
    following = 1
    for child in _list(node["list"], "'list' of 'operations'"):
        name = _name(child, "operations", [operation.name for operation in operations])
        where = f"the operation '{name}'"
        if "notify" in child:
            _check_notification(child, where, requests, groups)
        else:
            _check_request(child, where, sets)
            requests.append(name)
        value = _value(child, where, following, 0xFF)
        operations.append(Named(name, value, _doc(child, where)))
        following = value + 1
    return operations


def _groups(node):
    _keys(node, "'mcast-groups'", ("list",))
    names = []
    for child in _list(node["list"], "'list' of 'mcast-groups'"):
        names.append(_name(child, "mcast-groups", names))
        if len(names[-1]) > 15:
            raise SpecError(f"the multicast group '{names[-1]}' has a name of more than 15 characters")
    return names


def parse(text):
    """Turn the text of a spec into a Spec, or raise SpecError."""
    try:
        root = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecError(f"it is not YAML: {' '.join(str(error).split())}") from error
    sections = ("name", "protocol", "version", "doc", "definitions", "attribute-sets", "operations", "mcast-groups")
    _keys(root, "the spec", sections, ("kernel-policy",))
    name = _name(root, "the family", [])
    if len(name) > 15:
        raise SpecError(f"the family '{name}' has a name of more than 15 characters")
    if root["protocol"] != "genetlink-legacy":
        raise SpecError(f"the protocol is '{root['protocol']}'; only genetlink-legacy is known")
    version = _value({"value": root["version"]}, "the family's version", 1, 0xFF)
    enums = _enums(_list(root["definitions"], "'definitions'"))
    sets = _sets(_list(root["attribute-sets"], "'attribute-sets'"))
    _check_references(enums, sets)
    groups = _groups(root["mcast-groups"])
    operations = _operations(root["operations"], name, sets, groups)
    return Spec(name, version, _doc(root, "the family"), enums, sets, operations, groups)
