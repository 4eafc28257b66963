// What a CUDA driver answers where its documentation leaves it open, or where much rests on it.
// `beliefs.txt` has the answers of the fake driver; on a card each difference is a row.
#ifndef MILLPOND_GPU_BELIEFS_HPP
#define MILLPOND_GPU_BELIEFS_HPP

#include <functional>
#include <string>

#include "raw.hpp"

namespace gpu {

/// Takes a question and the driver's answer.
using Tell = std::function<void(const std::string& question, const std::string& answer)>;

/// Calls beside a stream capture: which are refused, and which break it.
void capture_table(const Tell& tell);

/// Which calls wait for work that is queued, whether it is a callback of the host or a kernel.
void waits(const Tell& tell);

/// Mapped memory, its addresses and its handles.
void mapped(const Tell& tell);

/// Streams and events, their ends and their names.
void streams(const Tell& tell);

}  // namespace gpu

#endif  // MILLPOND_GPU_BELIEFS_HPP
