"""The documentation site: `python -m sphinx -W -n docs build/site`, then build/site/index.html."""

import re

import aicf
from docutils import nodes
from sphinx import addnodes

project = "aicf"
version = release = aicf.__version__
copyright = "the aicf authors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["notebooks"]

html_theme = "furo"
html_title = f"aicf {version}"
html_static_path = ["style"]
html_css_files = ["aicf.css"]
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_enable_extensions = ["colon_fence", "substitution"]
myst_heading_anchors = 3
default_role = "code"  # what docstrings have in single backticks

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"


def _names(names: list[str]) -> str:
    return ", ".join(f"`aicf.{name}`" for name in names)


def _directives(kind: str, module: str, names: list[str]) -> str:
    lines = [f".. auto{kind}:: {module}.{name}" for name in names]
    return "\n".join(["```{eval-rst}", *lines, "```"])


# The lists of the reference follow the modules: a new function is there by itself.
myst_substitutions = {
    "pointwise_functions": _directives("function", "aicf", aicf.ops.__all__),
    "elementary_functions": _directives("function", "aicf", aicf.elementary.__all__),
    "shape_functions": _directives("function", "aicf", aicf.movement.__all__),
    "custom_functions": _directives("function", "aicf", ["custom_op"]),
    "gradient_functions": _directives("function", "aicf", aicf.gradients.__all__),
    "loop_functions": _directives("function", "aicf", aicf.loops.__all__),
    "recurrent_functions": _directives("function", "aicf", aicf.recurrent.__all__),
    "array_functions": _directives(
        "function", "aicf", [*aicf.arrays.__all__, *aicf.assembly.__all__, *aicf.numerics.__all__]
    ),
    "indexing_functions": _directives("function", "aicf", aicf.indexing.__all__),
    "sampling_functions": _directives("function", "aicf", aicf.sampling.__all__),
    "convolution_functions": _directives("function", "aicf", aicf.convolutions.__all__),
    "pool_functions": _directives("function", "aicf", aicf.pools.__all__),
    "resampling_functions": _directives("function", "aicf", aicf.resampling.__all__),
    "activation_functions": _directives("function", "aicf", aicf.activations.__all__),
    "loss_functions": _directives(
        "function",
        "aicf",
        [*aicf.class_losses.__all__, *aicf.losses.__all__, *aicf.sequences.__all__],
    ),
    "layer_functions": _directives(
        "function",
        "aicf",
        [*aicf.nn_functions.__all__, *aicf.heads.__all__, *aicf.regularizers.__all__],
    ),
    "pointwise_names": _names([*aicf.ops.__all__, *aicf.elementary.__all__]),
    "shape_names": _names(
        [
            *aicf.movement.__all__,
            *aicf.arrays.__all__,
            *aicf.assembly.__all__,
            *aicf.numerics.__all__,
            *aicf.indexing.__all__,
        ]
    ),
    "layer_names": _names(
        [
            *aicf.nn_functions.__all__,
            *aicf.recurrent.__all__,
            *aicf.heads.__all__,
            *aicf.regularizers.__all__,
            *aicf.convolutions.__all__,
            *aicf.pools.__all__,
            *aicf.resampling.__all__,
            *aicf.activations.__all__,
            *aicf.class_losses.__all__,
            *aicf.losses.__all__,
            *aicf.sequences.__all__,
        ]
    ),
    **{
        f"{kind}_modules": _directives("class", "aicf.nn", getattr(aicf.nn, file).__all__)
        for kind, file in {
            "linear": "modules_linear",
            "convolution": "modules_convolution",
            "norm": "modules_norm",
            "attention": "modules_attention",
            "recurrent": "modules_recurrent",
            "pool": "modules_pool",
            "shape": "modules_shape",
            "activation": "modules_activation",
            "loss": "modules_loss",
            "container": "containers",
        }.items()
    },
    "op_kinds": ", ".join(f"`{kind.name}`" for kind in aicf.OpKind),
}

# Names of other packages' types in signatures: their documentation is not asked for.
nitpick_ignore_regex = [("py:.*", r"(?!aicf\.).*")]


_HEAD = re.compile(r"^(Returns|Raises|Source): (?=\S)")
_MARKS = re.compile(  # in backticks, or what reST would take for its own
    r"(`[^`]*`)|(\||\w_(?=\W|$))"
)


def _docstring(app, what, name, obj, options, lines) -> None:
    """Docstrings are plain text with backticks; `Raises: text` on one line is a paragraph."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            line = _MARKS.sub(lambda m: m[1] or m[2][:-1] + "\\" + m[2][-1], line)
            lines[i] = _HEAD.sub(r"**\1:** ", line)
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]  # napoleon takes what stands before a first colon for a type


def _links(app, doctree) -> None:
    """`aicf.name` in the text of a page leads to the reference."""
    for literal in list(doctree.findall(nodes.literal)):
        name, inside = literal.astext(), literal.parent
        if not re.fullmatch(r"aicf(\.[a-zA-Z_]\w*)+", name) or name == "aicf.h":
            continue
        if not isinstance(inside, (nodes.reference, addnodes.pending_xref, nodes.title)):
            link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=name)
            link["refdoc"] = app.env.docname
            inside.replace(literal, link)
            link += literal


def _public(app, env, node, contnode):
    """Types are defined in modules of their own and documented as names of aicf."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or not hasattr(aicf, name):
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], f"aicf.{name}", node, contnode
    )


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _docstring, priority=100)
    app.connect("doctree-read", _links)
    app.connect("missing-reference", _public)
