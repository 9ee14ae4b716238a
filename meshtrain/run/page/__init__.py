"""How does a plan or an audit look? One page of HTML, whole in itself, in two languages."""

from meshtrain.run.page.data import page_data
from meshtrain.run.page.write import check_target, render, write_page

__all__ = ["check_target", "page_data", "render", "write_page"]
