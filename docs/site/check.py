"""Follows every link of the pages of a built site to a file of it; what is outside is not asked.

    python3 check.py BOOK
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The tools that make these check their own links.
NOT_OURS = ("c", "rust")


class Page(HTMLParser):
    """The links of a page, and the places in it that a link can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.names.add(value)


def main() -> int:
    book = Path(sys.argv[1]).resolve()
    pages = {
        path: Page(path)
        for path in sorted(book.rglob("*.html"))
        if path.relative_to(book).parts[0] not in NOT_OURS and path.name not in ("404.html", "print.html")
    }
    followed, broken = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not to.is_file():
                broken.append(f"{path.relative_to(book)}: {link}")
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].names:
                broken.append(f"{path.relative_to(book)}: {link} (no such heading)")
    for line in broken:
        print("broken link in", line)
    print(f"site: {len(pages)} pages, {followed} links followed, {len(broken)} broken")
    return 1 if broken or len(pages) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
