"""The former place of `collab_fairseq.files`, for recipes."""

from collab_fairseq.files import check_writable, write_bytes, write_json, write_text

__all__ = ["check_writable", "write_bytes", "write_json", "write_text"]
