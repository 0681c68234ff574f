"""Archives of `skuq._utils._archive`, taken apart and put together again with one fault."""

import hashlib
import io
import json
import zipfile


def unpacked(data):
    """``(header, {name: bytes})`` of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    return json.loads(members.pop("header.json")), members


def packed(header, members, *, repeat=(), listed=None, change=None):
    """An archive whose sizes and checksums are right.

    Parameters
    ----------
    header : dict
        Its `members` are made here.
    members : dict of str to bytes
    repeat : sequence of (str, bytes)
        Written after the others, whatever their names.
    listed : collection of str, optional
        Members that the header lists; all by default.
    change : callable, optional
        ``change(info)``, for each member before it is written.
    """
    facts = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
        if listed is None or name in listed
    }
    text = json.dumps({**header, "members": facts}).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in [("header.json", text), *members.items(), *repeat]:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            is_array = name.endswith(".npy")
            info.compress_type = zipfile.ZIP_STORED if is_array else zipfile.ZIP_DEFLATED
            if change is not None:
                change(info)
            archive.writestr(info, data)
    return buffer.getvalue()


def with_tree(data, change):
    """The archive with another ``tree.json``: what `change` makes of the decoded one, or text."""
    header, members = unpacked(data)
    tree = change(json.loads(members["tree.json"]))
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return packed(header, {**members, "tree.json": text})


def with_member(data, name, new):
    """The archive with other bytes of a member."""
    header, members = unpacked(data)
    return packed(header, {**members, name: new})
