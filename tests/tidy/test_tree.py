"""The shape of the checkout: where a package may begin, what each file says first, and what no file may name."""

import ast

from tests.tidy.source_tree import ROOT, TOP_FOLDERS, files, modules, name_of, parsed

# In pieces, so that this file does not name them itself. Which registry is used is the machine's business, not the checkout's.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("proxy", "golang", "org"),
        ("sum", "golang", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("static", "crates", "io"),
        ("index", "crates", "io"),
        ("deb", "debian", "org"),
    ]
)


def test_a_top_folder_is_no_package() -> None:
    # An __init__.py in operator/ would shadow the standard module and break `import collections`.
    found = [f"{folder}/__init__.py" for folder in TOP_FOLDERS if (ROOT / folder / "__init__.py").exists()]
    found += [name_of(path) for path in (ROOT / "tests").rglob("__init__.py")]
    assert not found, f"must not exist: {found}"


def test_every_folder_of_a_package_says_that_it_is_one() -> None:
    found = {
        name_of(path.parent)
        for folder in TOP_FOLDERS
        if folder != "tests"
        for path in modules(folder)
        if path.parent != ROOT / folder and not (path.parent / "__init__.py").exists()
    }
    assert not found, f"without __init__.py they are left out of the wheel: {sorted(found)}"


def test_every_module_starts_with_a_docstring() -> None:
    found = []
    for path in modules(*TOP_FOLDERS):
        tree = parsed(path)
        if path.name == "__init__.py" and not tree.body:
            continue
        first = tree.body[0] if tree.body else None
        if ast.get_docstring(tree) is None or first is None or first.lineno != 1:
            found.append(name_of(path))
    assert not found, f"the first line must say where the module stands: {found}"


def test_no_text_names_a_package_registry() -> None:
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8").lower()
        except UnicodeDecodeError:
            continue
        found += [f"{name_of(path)} names {host}" for host in REGISTRY_HOSTS if host in text]
    assert not found, "\n".join(found)
