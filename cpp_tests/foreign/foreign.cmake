# Plugins as other people write them, registered with Millpond as host: each through the whole conformance suite, and
# all through foreign_test.cpp, which holds their sizes to the byte.
#
# MILLPOND_PADDLE_INCLUDES names include folders of installed PaddlePaddle wheels (.../site-packages/paddle/include), the
# one to build with first; a plugin of an older struct size is built for each of the others. scripts/test.sh makes them.
# Where there is none, the same sources are built with our own header, which has the same layout.
set(MILLPOND_PADDLE_INCLUDES "" CACHE STRING "Include folders of PaddlePaddle wheels: the newest, then older ones")
mark_as_advanced(MILLPOND_PADDLE_INCLUDES)

set(foreign_dir "${CMAKE_CURRENT_LIST_DIR}")
set(foreign_older "${MILLPOND_PADDLE_INCLUDES}")
if(foreign_older)
  list(POP_FRONT foreign_older foreign_newest)
  message(STATUS "Millpond: foreign plugins are built with ${foreign_newest}/paddle/phi/backends/device_ext.h")
else()
  message(STATUS "Millpond: NO PaddlePaddle wheel is here; foreign plugins are built with Millpond's own custom_runtime.h")
endif()

set(foreign_list "")
# Tests of the suite that a plugin cannot pass, because what stands in for a function that it leaves out waits on the host
# (docs/paddle.md): they hold a stream back, and ask that nothing waits for it.
set(foreign_waits_for_events
    Dlpack.AConsumersStreamKeepsABlockOfOurs
    Reuse.AFreeOnAnotherStreamHonoursBoth Reuse.AnUnorderedFreeWaitsForEveryStream
    Reuse.AnotherStreamWaitsForTheStreamOfTheFree Reuse.RecordedStreamsHoldABlockBack
    Streams.AnEventStandsForItsLastRecordOnly Streams.EventsOrderStreams Streams.QueuedWaitsOutliveTheirEvent
)
set(foreign_waits_for_copies
    Streams.CopiesReturnBeforeTheyAreDone Streams.StreamsRunBesideEachOther Streams.DestroyedStreamsFinishTheirWork
    Streams.PageableSourceIsReadBeforeTheCallReturns
)
# A stream is held back by a callback, so nothing can be held back without them.
set(foreign_waits_for_callbacks
    ${foreign_waits_for_events} ${foreign_waits_for_copies} Reuse.OnItsOwnStreamMemoryComesBackAtOnce
    Streams.DeviceSynchronizeWaitsForEveryStream
)
set(foreign_except "") # for the next plugin only

# foreign_plugin(<label> <include folder of a wheel, or ""> <definitions...>)
function(foreign_plugin label include)
  set(target millpond_foreign_${label})
  add_library(${target} MODULE "${foreign_dir}/plugin.cpp")
  target_compile_features(${target} PRIVATE cxx_std_17)
  target_compile_definitions(${target} PRIVATE "FOREIGN_TYPE=\"foreign_${label}\"" ${ARGN})
  # Only the headers: a plugin links nothing of the host's.
  if(include)
    target_include_directories(${target} SYSTEM PRIVATE "${include}")
    target_compile_definitions(${target} PRIVATE FOREIGN_PADDLE_HEADER)
  else()
    target_include_directories(${target} PRIVATE "${Millpond_SOURCE_DIR}/include")
  endif()
  # Not optimised all the way: their own time is nothing, and there are many.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-function $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${target} PRIVATE Threads::Threads)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  add_dependencies(millpond_cpp_tests ${target})
  set(foreign_list "${foreign_list};${label}=$<TARGET_FILE:${target}>" PARENT_SCOPE)

  list(TRANSFORM foreign_except PREPEND "Devices/")
  list(TRANSFORM foreign_except APPEND "/*")
  list(JOIN foreign_except ":" except)
  set(foreign_except "" PARENT_SCOPE)
  add_test(NAME foreign.${label} COMMAND millpond_cpp_tests "--gtest_filter=Devices/*/${label}:-${except}")
  set_tests_properties(
    foreign.${label} PROPERTIES TIMEOUT 300 ENVIRONMENT "MILLPOND_TEST_PLUGINS=${label}=$<TARGET_FILE:${target}>"
                                FAIL_REGULAR_EXPRESSION "Running 0 tests"
  )
endfunction()

set(mib "*1048576ull")
foreign_plugin(full "${foreign_newest}")
# Each leaves out other optional functions.
foreign_plugin(no_streams "${foreign_newest}" FOREIGN_NO_STREAMS FOREIGN_NO_HOST_MEMORY)
set(foreign_except ${foreign_waits_for_events})
foreign_plugin(no_events "${foreign_newest}" FOREIGN_NO_EVENTS FOREIGN_NO_EXTRA_COPIES)
set(foreign_except ${foreign_waits_for_events} ${foreign_waits_for_copies})
foreign_plugin(no_async "${foreign_newest}" FOREIGN_NO_ASYNC FOREIGN_NO_QUERIES FOREIGN_NO_LIFECYCLE)
set(foreign_except ${foreign_waits_for_callbacks})
foreign_plugin(no_callbacks "${foreign_newest}" FOREIGN_NO_CALLBACKS FOREIGN_NO_WAITS FOREIGN_NO_STATS)
# Sizes.
foreign_plugin(
  large_chunk "${foreign_newest}" FOREIGN_MIN_CHUNK=65536 FOREIGN_PADDING=1000 "FOREIGN_INIT_ALLOC=8${mib}"
  "FOREIGN_REALLOC=4${mib}"
)
# The blocks of these are above the max chunk, and so end with a free of the plugin's, which waits.
set(foreign_except Reuse.OnItsOwnStreamMemoryComesBackAtOnce Dlpack.AConsumersStreamKeepsABlockOfOurs)
foreign_plugin(
  small_max_chunk "${foreign_newest}" FOREIGN_MIN_CHUNK=256 FOREIGN_MAX_CHUNK=262144 FOREIGN_INIT_ALLOC=524288
  FOREIGN_REALLOC=262144
)
foreign_plugin(
  max_alloc "${foreign_newest}" FOREIGN_MIN_CHUNK=512 "FOREIGN_MAX_ALLOC=200${mib}" "FOREIGN_MAX_CHUNK=64${mib}"
  "FOREIGN_INIT_ALLOC=3${mib}+4096" "FOREIGN_REALLOC=5${mib}+512"
)
foreign_plugin(odd_chunk "${foreign_newest}" FOREIGN_MIN_CHUNK=768 FOREIGN_PADDING=1 "FOREIGN_INIT_ALLOC=6${mib}")
foreign_plugin(small_chunk "${foreign_newest}" FOREIGN_MIN_CHUNK=8 "FOREIGN_INIT_ALLOC=6${mib}")
# Behaviour: nothing fails or throws until the test asks for it.
foreign_plugin(fails "${foreign_newest}" "FOREIGN_MAX_CHUNK=64${mib}" "FOREIGN_INIT_ALLOC=4${mib}" "FOREIGN_REALLOC=4${mib}")
foreign_plugin(throws "${foreign_newest}")
# Struct sizes of older releases.
if(foreign_older)
  set(number 0)
  foreach(include IN LISTS foreign_older)
    math(EXPR number "${number} + 1")
    foreign_plugin(older_${number} "${include}" FOREIGN_OLDER)
  endforeach()
else()
  foreign_plugin(older_1 "" FOREIGN_OLDER)
endif()

add_executable(millpond_foreign_test "${foreign_dir}/foreign_test.cpp")
target_link_libraries(millpond_foreign_test PRIVATE millpond_test_options GTest::gtest_main ${CMAKE_DL_LIBS})
target_compile_options(millpond_foreign_test PRIVATE $<$<CONFIG:Release>:-O1>)
list(JOIN foreign_list "\\;" foreign_list)
add_test(NAME foreign.sizes COMMAND millpond_foreign_test)
set_tests_properties(foreign.sizes PROPERTIES TIMEOUT 120 ENVIRONMENT "MILLPOND_FOREIGN_PLUGINS=${foreign_list}")
