"""The pool of cache pages: who holds each page, and which pages can be found by their content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PagePool:
    """Every page is in exactly one class, and each operation takes constant time a page.

    owned   some request reads or writes it; counted, because requests share pages
    cached  nobody holds it, but its content has a key and may be wanted again
    free    nobody holds it and its content means nothing

    A page gets a key (`core.scheduling.prefix`) once all its tokens are known and their step
    is planned.
    When free pages run out, the cached page that was let go the longest ago is given away.
    """

    def __init__(self, pages: int) -> None:
        self.total = pages
        self.evictions = 0
        self._holders = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # a stack, page 0 on top
        self._cached: OrderedDict[int, None] = OrderedDict()  # the longest let go first
        self._page_of: dict[bytes, int] = {}  # by key, in the order of `offer`
        self._key_of: dict[int, bytes] = {}
        self._step = [0] * pages  # of `offer`

    @property
    def free(self) -> int:
        """Pages without content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that nobody holds, kept for their content."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._cached)

    @property
    def owned(self) -> int:
        """Pages that at least one request holds."""
        return self.total - self.available

    def take(self, count: int) -> list[int]:
        """`count` pages for one holder; `count` is at most `available`. Evicts if it must."""
        assert count <= self.available, f"{count} pages wanted, {self.available} available"
        fresh = min(count, len(self._free))
        pages = self._free[len(self._free) - fresh :]
        del self._free[len(self._free) - fresh :]
        pages.reverse()
        for _ in range(count - fresh):
            page, _none = self._cached.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
            pages.append(page)
            self.evictions += 1
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each of these pages, which `find` gave."""
        for page in pages:
            if self._holders[page] == 0:
                del self._cached[page]
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page of a request, given in the order of its tokens.

        The last page is let go first: it is of no use without those before it, so it should be
        evicted before them.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._key_of:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def offer(self, page: int, key: bytes, step: int) -> None:
        """Let an owned page be found by `key` from now on; step `step` or an earlier one fills it.

        When another page has the same content already, that one stays the one to be found.
        """
        assert self._holders[page] > 0, f"page {page} is not owned"
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key
            self._step[page] = step

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the longest run of leading keys that are known."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def unheld(self, pages: Iterable[int]) -> int:
        """How many of these pages are available, and would not be once they are shared."""
        return sum(self._holders[page] == 0 for page in pages)

    def forget(self, pages: Iterable[int]) -> None:
        """Take the keys of these pages away; those that nobody holds become free."""
        for page in pages:
            if (key := self._key_of.pop(page, None)) is not None:
                del self._page_of[key]
                if page in self._cached:
                    del self._cached[page]
                    self._free.append(page)

    def forget_since(self, step: int) -> set[int]:
        """Forget the pages offered in this step or later, and return them."""
        late = set()
        for page in reversed(self._page_of.values()):
            if self._step[page] < step:
                break  # keys are in the order of their steps
            late.add(page)
        self.forget(late)
        return late

    def reset(self) -> None:
        """Forget the content of every page."""
        self.forget(list(self._key_of))

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that every page is in one class; `held` is the page list of each holder."""
        holders = [0] * self.total
        for pages in held:
            for page in pages:
                holders[page] += 1
        assert holders == self._holders, "a page's holders do not match the page lists"
        owned = {page for page, count in enumerate(holders) if count}
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a page is free twice"
        assert len(owned) + len(free) + len(cached) == self.total, "pages are lost"
        assert len(owned | free | cached) == self.total, "a page is in two classes"
        assert cached <= self._key_of.keys(), "a cached page has no key"
        assert not free & self._key_of.keys(), "a free page has a key"
        assert self._page_of == {key: page for page, key in self._key_of.items()}
