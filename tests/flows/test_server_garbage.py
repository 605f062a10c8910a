"""Garbage of Prefect's server: what waits for a connection of SQLite's in use is a thread, not the event loop."""

import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent("""
    import gc, sqlite3, threading
    from ranklake.flows.serving.server import collect_in_a_thread

    entered, released, answers, collecting = threading.Event(), threading.Event(), [], []

    def wait():
        entered.set()
        return released.wait(20)

    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.create_function("wait", 0, wait)
    collect_in_a_thread()
    cycle = [connection.execute("SELECT 1 UNION SELECT 2")]  # a row is left: to free the cursor resets its statement
    cycle.append(cycle)
    thread = threading.Thread(target=lambda: answers.extend(connection.execute("SELECT wait()").fetchone()))
    thread.start()
    entered.wait()
    gc.callbacks.append(lambda phase, _info: collecting.append(threading.current_thread().name))
    del cycle
    while not collecting:
        kept = [[number] for number in range(10_000)]
    released.set()
    thread.join()
    print(*answers, *set(collecting))
""")


def test_a_cursor_of_a_connection_in_use_holds_up_no_other_thread():
    """A cursor in a cycle of references is freed while its connection answers a query that waits for this thread."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["1", "garbage"], done.stderr
