"""Calling a step's function: sync or async, within its time-out.

A sync function with a time-out runs in a thread of its own, because Python can't interrupt one; if it
does not return in time it is left behind, counted in `stuck`, and its process replaces itself when its
other work is done. Async functions run on one event loop per process and are cancelled properly.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

POOL_MAX = 512


class Overdue(Exception):
    """The function did not return within its time-out; whether it still will is not known."""


class Caller:
    """Runs step functions for all turns of one process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(POOL_MAX, thread_name_prefix="actum-step")
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stuck = 0

    def call(self, function: Callable[..., Any], timeout: float | None, kwargs: dict[str, Any]) -> Any:
        """Return what `function(**kwargs)` returns. Raises `Overdue` after `timeout` seconds."""
        if inspect.iscoroutinefunction(function):
            return self._call_async(function, timeout, kwargs)
        if timeout is None:
            return function(**kwargs)
        context = contextvars.copy_context()
        future = self._pool.submit(context.run, partial(function, **kwargs))
        return self._result(future, function, timeout)

    def _result(self, future: Future[Any], function: Callable[..., Any], timeout: float) -> Any:
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise  # the function's own TimeoutError
            self.stuck += 1
            future.add_done_callback(self._came_back)
            raise Overdue(f"{function.__name__} did not return within {timeout:g} s") from None

    def _came_back(self, _: Future[Any]) -> None:
        self.stuck -= 1

    def _call_async(self, function: Callable[..., Any], timeout: float | None, kwargs: Any) -> Any:
        async def bounded() -> Any:
            try:
                async with asyncio.timeout(timeout) as scope:
                    return await function(**kwargs)
            except TimeoutError:
                if not scope.expired():
                    raise
                raise Overdue(f"{function.__name__} did not return within {timeout:g} s") from None

        return asyncio.run_coroutine_threadsafe(bounded(), self._event_loop()).result()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_until_stopped,
                    args=(self._loop,),
                    name="actum-async",
                    daemon=True,
                ).start()
            return self._loop

    def close(self) -> None:
        """End the threads that are free; those left behind are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
