// UCX as this example uses it: a context with remote memory access, a worker, an endpoint to a
// peer; and a socket, by which the two processes tell each other what UCX does not.
#ifndef ENGINE_HPP
#define ENGINE_HPP

#include <poll.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "registrations.hpp"

inline void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

inline void send_bytes(int socket, const void* from, std::size_t bytes) {
  const char* at = static_cast<const char*>(from);
  for (std::size_t sent = 0; sent < bytes;) {
    const ssize_t n = ::send(socket, at + sent, bytes - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, "the other process has ended");
    sent += static_cast<std::size_t>(n);
  }
}

inline void receive_bytes(int socket, void* to, std::size_t bytes) {
  char* at = static_cast<char*>(to);
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t n = recv(socket, at + got, bytes - got, 0);
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, "the other process has ended");
    got += static_cast<std::size_t>(n);
  }
}

inline void send_number(int socket, std::uint64_t number) {
  send_bytes(socket, &number, sizeof number);
}

inline std::uint64_t receive_number(int socket) {
  std::uint64_t number = 0;
  receive_bytes(socket, &number, sizeof number);
  return number;
}

inline void send_all(int socket, const std::string& text) {
  send_number(socket, text.size());
  send_bytes(socket, text.data(), text.size());
}

inline std::string receive_all(int socket) {
  std::string text(receive_number(socket), '\0');
  receive_bytes(socket, &text[0], text.size());
  return text;
}

// A context and a worker of one thread.
class Engine {
 public:
  Engine() {
    ucp_params_t wish{};
    wish.field_mask = UCP_PARAM_FIELD_FEATURES;
    wish.features = UCP_FEATURE_RMA;
    must(ucp_init(&wish, nullptr, &context_), "ucp_init");
    ucp_worker_params_t one{};
    one.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    one.thread_mode = UCS_THREAD_MODE_SINGLE;
    const ucs_status_t made = ucp_worker_create(context_, &one, &worker_);
    if (made != UCS_OK) ucp_cleanup(context_);
    must(made, "ucp_worker_create");
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() {
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }

  // For the peer that wants to reach this process.
  std::string address() const {
    ucp_address_t* address = nullptr;
    std::size_t length = 0;
    must(ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
    std::string text(reinterpret_cast<char*>(address), length);
    ucp_worker_release_address(worker_, address);
    return text;
  }

  // Some transports need the side whose memory is used to take part.
  void progress_until_readable(int socket) const {
    pollfd wait{socket, POLLIN, 0};
    while (poll(&wait, 1, 0) == 0) {
      while (ucp_worker_progress(worker_) != 0) {
      }
    }
  }

  // Waits for a request of UCX, which may have ended already.
  void finish(ucs_status_ptr_t request, const char* what) const {
    if (request == nullptr) return;
    if (UCS_PTR_IS_ERR(request)) must(UCS_PTR_STATUS(request), what);
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
      ucp_worker_progress(worker_);
    ucp_request_free(request);
    must(status, what);
  }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
};

// The way to the memory of another process.
class Link {
 public:
  Link(const Engine& engine, const std::string& address) : engine_(engine) {
    ucp_ep_params_t wish{};
    wish.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    wish.address = reinterpret_cast<const ucp_address_t*>(address.data());
    must(ucp_ep_create(engine_.worker(), &wish, &endpoint_), "ucp_ep_create");
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() { ucp_ep_destroy(endpoint_); }

  // Reads a piece of the peer's memory.
  void get(void* to, const Piece& from) const {
    const Key key(endpoint_, from.key);
    const ucp_request_param_t none{};
    engine_.finish(ucp_get_nbx(endpoint_, to, from.bytes, from.address, key.handle, &none),
                   "ucp_get_nbx");
  }

  // Writes a piece of the peer's memory, and waits until it is there.
  void put(const void* from, const Piece& to) const {
    const Key key(endpoint_, to.key);
    const ucp_request_param_t none{};
    engine_.finish(ucp_put_nbx(endpoint_, from, to.bytes, to.address, key.handle, &none),
                   "ucp_put_nbx");
    engine_.finish(ucp_ep_flush_nbx(endpoint_, &none), "ucp_ep_flush_nbx");
  }

 private:
  struct Key {
    Key(ucp_ep_h endpoint, const std::string& packed) {
      must(ucp_ep_rkey_unpack(endpoint, packed.data(), &handle), "ucp_ep_rkey_unpack");
    }
    Key(const Key&) = delete;
    Key& operator=(const Key&) = delete;
    ~Key() { ucp_rkey_destroy(handle); }
    ucp_rkey_h handle = nullptr;
  };

  const Engine& engine_;
  ucp_ep_h endpoint_ = nullptr;
};

#endif  // ENGINE_HPP
