// A small HTTP/1.1 server and client for the admin API: a Unix socket, and optionally a TCP port
// for /metrics and status pages. Not for bulk data; one request a connection.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "io/frame_network.h"

namespace tierkeep {

struct HttpRequest {
  std::string method;  // "GET", "POST"; the server answers others with 404 by itself
  std::string path;    // without the query, percent-decoded
  std::string query;   // raw, without '?'
  std::string body;    // at most 1 MiB; the server answers more with 413 by itself
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
};

// Called on the server's threads, several at once. Must not throw.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

// An idle server uses no processor time. A request must arrive within 10 s, its answer leave within
// 10 s; connections beyond what two threads and a short queue can take are closed at once.
class HttpServer {
 public:
  // Stops listening, waits for handlers that run, unlinks the socket.
  virtual ~HttpServer() = default;
  // Mode 0600. A socket file left behind is replaced; one that answers is kAlreadyExists.
  static Result<std::unique_ptr<HttpServer>> ListenUnix(const std::string& path,
                                                        HttpHandler handler);
  // Port 0: any free; host "": all addresses.
  static Result<std::unique_ptr<HttpServer>> ListenTcp(const HostPort& at, HttpHandler handler);
  virtual uint16_t port() const = 0;  // 0 for a Unix socket
};

// One request over a Unix socket; kUnavailable when nobody listens there, kDeadlineExceeded when
// the answer isn't complete in time. Any HTTP status is a response, not an error.
Result<HttpResponse> HttpOverUnix(const std::string& socket_path, const std::string& method,
                                  const std::string& path, const std::string& body,
                                  Duration deadline);

}  // namespace tierkeep
