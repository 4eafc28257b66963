# The commands of the README, and the helpers of CONTRIBUTING. Each is a script or a Cargo command that also works alone.
.PHONY: demo test bench build format bless clean

# Replays a recorded training program on the host device.
demo:
	@sh scripts/demo.sh

# Runs every test; the last line counts them.
test:
	@sh scripts/test.sh

# Measures; one table of goals and what was reached. `scripts/bench.sh --quick` takes a minute.
bench:
	@sh scripts/bench.sh

# The C library, the plugin, C++ tests and examples, in ./build.
build:
	cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build

# Formats everything that the tests check.
format:
	cargo fmt --all
	find include tests cpp_tests examples bench -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' \) \
	  ! -path 'include/millpond/millpond.h' ! -path 'tests/header/*' -exec clang-format -i {} +

# Writes include/millpond/millpond.h anew from the Rust sources.
bless:
	MILLPOND_BLESS=1 cargo test --test header

clean:
	rm -rf build target
