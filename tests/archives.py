"""Archives of `skuq._utils._archive`, taken apart and put together again with one fault."""

import io
import json
import zipfile

from skuq._utils import _archive

read, to_bytes, write = _archive.read, _archive.to_bytes, _archive.write


def unpacked(data):
    """``(header, {name: bytes})`` of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    return json.loads(members.pop("header.json")), members


def packed(header, members):
    """An archive of this header and these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in [("header.json", json.dumps(header).encode()), *members.items()]:
            info = zipfile.ZipInfo(name)
            is_array = name.endswith(".npy")
            info.compress_type = zipfile.ZIP_STORED if is_array else zipfile.ZIP_DEFLATED
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
