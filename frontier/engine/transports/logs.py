"""Log records of forked workers, handled in the parent by multiprocessing-logging."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["forwarded"]

DRAIN_SECONDS = 0.5


@contextmanager
def forwarded(logger: logging.Logger) -> Iterator[None]:
    """Have children forked within send the logger's records to the parent, whose handlers then write them."""
    if not logger.handlers or multiprocessing.get_start_method() != "fork":
        yield  # there is nothing to forward, or children write by themselves on this platform
        return
    from multiprocessing_logging import MultiProcessingHandler, install_mp_handler

    before = list(logger.handlers)
    install_mp_handler(logger)
    try:
        yield
    finally:
        ours = [handler for handler in logger.handlers if isinstance(handler, MultiProcessingHandler)]
        patience = time.perf_counter() + DRAIN_SECONDS
        while time.perf_counter() < patience and any(handler.queue.qsize() for handler in ours):
            time.sleep(0.002)
        logger.handlers = before
        for handler in ours:
            handler.sub_handler = logging.NullHandler()  # close() would close the user's handler
            handler.queue.put_nowait(logging.makeLogRecord({}))  # wakes its thread
            # A worker killed in the middle of a record leaves a queue that never empties: don't wait for it.
            threading.Thread(target=handler.close, daemon=True).start()
