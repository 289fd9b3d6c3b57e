"""A TLS client that says nothing: does an agent's port let its certificate in?

A refusal is an alert. The end of a connection alone proves nothing, since an agent ends one that was let
in and stays silent as well, after its ten seconds. The other way round the client may look away early:
whoever is let in hears nothing, however slow the machine is.
"""

import socket
import ssl

HOST = "127.0.0.1"
SILENCE_SECONDS = 1


def _context(folder, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if version is not None:
        context.maximum_version = version
    if folder is not None:
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    return context


def _alert(port, folder, version, seconds):
    """What the agent says against the client; None if nothing within `seconds`, or until the end."""
    try:
        with _context(folder, version).wrap_socket(
                socket.create_connection((HOST, port), 10)) as connection:
            connection.settimeout(seconds)
            while connection.recv(4096):
                pass
    except ssl.SSLError as error:
        return error.reason
    except TimeoutError:
        pass
    return None


def check_refused(port, folder=None, version=None):
    """The agent refuses this certificate (none: no folder), or this version, and says so."""
    alert = _alert(port, folder, version, 30)
    assert alert is not None and "ALERT" in alert, f"port {port} takes {folder} {version}: {alert}"


def check_let_in(port, folder):
    alert = _alert(port, folder, None, SILENCE_SECONDS)
    assert alert is None, f"port {port} refuses {folder}: {alert}"
