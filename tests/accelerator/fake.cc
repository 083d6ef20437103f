// The devices "fake:0" to "fake:3" for Paddle's CPU wheel on x86-64 Linux: they show code that holds on a CPU only. See device.py.
//
// - No code may touch its memory except its kernels and copies (FAKE_GUARD=0: all code may), which use a second mapping of
//   the same pages: to protect and unprotect them takes most of a test's time. New memory is full of NaN.
// - Each CPU kernel of Paddle is also a kernel of the device. During a call, the memory of the device has the place of
//   the CPU, and the kernel's context allocates memory of the device. So results in place and views are as on a GPU.
// - Kernels of 16-bit types that the CPU lacks run in float32 between casts.
// - Processes meet in a file in /dev/shm; each has memory of its own.
// - FAKE_WITHOUT=scale,adamw16 leaves out kernels (of 16-bit types): Paddle falls back to the CPU.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/cpu/cpu_context.h"
#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/phi/core/selected_rows.h"

using phi::DataType;
using phi::DenseTensor;
using Word = uint64_t;
static std::atomic<long> h2d, d2h, d2d, syncs, launches;
static size_t device;  // its number

// ---- memory
static const size_t SPACE = 1UL << 35;
static const bool guard = !getenv("FAKE_GUARD") || atoi(getenv("FAKE_GUARD"));
static char *memory, *opened;  // made at the first allocation: forks have one each
static std::recursive_mutex of_memory;
static size_t used;
static void make_memory() {
  const int file = memfd_create("fake", 0);
  if (ftruncate(file, SPACE)) abort();
  auto map = [&](int mode) { return (char*)mmap(nullptr, SPACE, mode, MAP_SHARED | MAP_NORESERVE, file, 0); };
  memory = map(guard ? PROT_NONE : PROT_READ | PROT_WRITE), opened = map(PROT_READ | PROT_WRITE);
}
static auto& spare = *new std::map<size_t, std::vector<void*>>;  // size -> freed blocks

static bool is_in(const void* p, const char* space) { return space && p >= space && p < space + SPACE; }
static void* open(const void* p) { return is_in(p, memory) ? opened + ((char*)p - memory) : (char*)p; }
static void* closed(const void* p) { return is_in(p, opened) ? memory + ((char*)p - opened) : (char*)p; }
static size_t pages(size_t n) { return n / 4096 * 4096 + 4096; }
static void* allocate(size_t n) {
  std::lock_guard<std::recursive_mutex> hold(of_memory);
  if (!memory) make_memory();
  auto& blocks = spare[n = pages(n)];
  if (blocks.empty()) blocks.push_back(memory + used), used += n;
  void* block = blocks.back();
  blocks.pop_back();
  memset(open(block), 0xFF, n);  // NaN
  return block;
}
static void release(void* block, size_t n) {
  std::lock_guard<std::recursive_mutex> hold(of_memory);
  spare[pages(n)].push_back(closed(block));
  memset(open(block), 0xFF, pages(n));
}
static C_Status copy(std::atomic<long>& counter, void* to, const void* from, size_t n) {
  return counter++, memmove(open(to), open(from), n), C_SUCCESS;
}

struct Allocation : phi::Allocation {  // a derived class may set the place
  static bool is_ours(const phi::Allocation* a) { return a && (is_in(a->ptr(), memory) || is_in(a->ptr(), opened)); }
  static void move(phi::Allocation* a, phi::Place place, void* to) { a->*(&Allocation::place_) = place, a->set_ptr(to); }
};
struct Allocator : phi::Allocator {
  AllocationPtr Allocate(size_t n) override {
    auto free = [](phi::Allocation* a) { release(a->ptr(), a->size()); };
    return AllocationPtr(new phi::Allocation(open(allocate(n)), n, free, phi::CPUPlace()), std::default_delete<phi::Allocation>());
  }
  bool IsAllocThreadSafe() const override { return true; }
};
static phi::CPUContext& context() {
  static auto& made = *[] {
    auto *cpu = phi::DeviceContextPool::Instance().Get(phi::CPUPlace());
    auto *context = new phi::CPUContext(phi::CPUPlace());
    auto *allocator = new Allocator;
    context->SetAllocator(allocator), context->SetZeroAllocator(allocator), context->SetHostAllocator(allocator);
    context->SetGenerator(cpu->GetGenerator()), context->SetHostGenerator(cpu->GetHostGenerator());
    return context;
  }();
  return made;
}

// ---- a call of a kernel
enum Form { OTHER, TENSOR, OPTIONAL, VECTOR, OPTIONAL_VECTOR, ROWS, OUT, OUT_VECTOR, OUT_ROWS };
using Inputs = std::vector<const DenseTensor*>;
using Outputs = std::vector<DenseTensor*>;
static const std::map<std::type_index, Form> forms = {
    {typeid(DenseTensor), TENSOR}, {typeid(paddle::optional<DenseTensor>), OPTIONAL}, {typeid(Inputs), VECTOR},
    {typeid(paddle::optional<Inputs>), OPTIONAL_VECTOR}, {typeid(phi::SelectedRows), ROWS}, {typeid(DenseTensor*), OUT},
    {typeid(Outputs), OUT_VECTOR}, {typeid(phi::SelectedRows*), OUT_ROWS}};
struct Argument { Form form; size_t word; };
struct Native {  // a CPU kernel
  phi::Kernel original;
  void* function;
  bool in_float32;  // the CPU has none of this 16-bit type
  size_t master;    // number of the argument for the master weight; 0: none
  std::vector<Argument> arguments;
};
static phi::Place place() { return phi::CustomPlace("fake", device); }
static bool is_half(DataType type) { return type == DataType::FLOAT16 || type == DataType::BFLOAT16; }
static void cast(const DenseTensor& from, DataType type, DenseTensor* to) {
  using Cast = void (*)(const phi::CPUContext&, const DenseTensor&, DataType, DenseTensor*);
  phi::KernelKey key(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, from.dtype());
  phi::KernelFactory::Instance().SelectKernel("cast", key).GetVariadicKernelFn<Cast>()(context(), from, type, to);
}

class Call {  // while it exists, the tensors of a call look like the CPU's
  bool in_float32_;
  std::vector<std::shared_ptr<phi::Allocation>> hidden_;
  std::vector<DenseTensor*> outputs_;
  std::map<DenseTensor*, DenseTensor> halves_;  // tensor -> what it was
  static bool has(DenseTensor* tensor, const Outputs& all) { return std::find(all.begin(), all.end(), tensor) != all.end(); }

 public:
  explicit Call(bool in_float32) : in_float32_(in_float32) { launches++; }
  void add(const DenseTensor* input, bool is_output = false) {
    auto* tensor = const_cast<DenseTensor*>(input);
    if (!tensor) return;
    if (is_output) outputs_.push_back(tensor);
    auto holder = tensor->Holder();
    if (Allocation::is_ours(holder.get())) hidden_.push_back(holder), Allocation::move(holder.get(), phi::CPUPlace(), open(holder->ptr()));
    if (!in_float32_ || !is_half(tensor->dtype()) || !halves_.emplace(tensor, *tensor).second) return;
    DenseTensor wide;
    wide.Resize(tensor->dims());
    if (holder && holder->ptr()) cast(*tensor, DataType::FLOAT32, &wide), *tensor = wide;
  }
  ~Call() {
    for (auto& [tensor, before] : halves_) {
      DenseTensor wide = *tensor;
      *tensor = before;
      if (!has(tensor, outputs_) || wide.dtype() != DataType::FLOAT32) { if (has(tensor, outputs_)) *tensor = wide; continue; }
      tensor->Resize(wide.dims());
      cast(wide, before.dtype(), tensor);
    }
    for (auto* tensor : outputs_) hidden_.push_back(tensor->Holder());
    for (auto& holder : hidden_) if (Allocation::is_ours(holder.get())) Allocation::move(holder.get(), place(), closed(holder->ptr()));
  }
};

// Any kernel by the calling convention: six words and eight floats in registers, further words on the stack.
struct Stack { Word words[60]; };
using Function = void (*)(Word, Word, Word, Word, Word, Word, double, double, double, double, double, double, double, double, Stack);
static thread_local const Native* current __attribute__((tls_model("initial-exec")));
static void launch(Word, Word b, Word c, Word d, Word e, Word f, double s, double t, double u, double v, double w, double x,
                   double y, double z, Stack stack) {
  const Native& kernel = *current;
  Word first[] = {(Word)&context(), b, c, d, e, f};
  auto word = [&](const Argument& of) -> Word& { return of.word < 6 ? first[of.word] : stack.words[of.word - 6]; };
  Call call(kernel.in_float32);
  for (auto& argument : kernel.arguments) {
    auto* p = (void*)word(argument);
    auto* optional = (paddle::optional<Inputs>*)p;
    if (!p) continue;
    switch (argument.form) {
      case OTHER: break;
      case TENSOR: case OUT: call.add((DenseTensor*)p, argument.form == OUT); break;
      case OPTIONAL: call.add(((paddle::optional<DenseTensor>*)p)->get_ptr()); break;
      case OPTIONAL_VECTOR: if (*optional) for (auto* tensor : **optional) call.add(tensor); break;
      case VECTOR: for (auto* tensor : *(Inputs*)p) call.add(tensor); break;
      case OUT_VECTOR: for (auto* tensor : *(Outputs*)p) call.add(tensor, true); break;
      case ROWS: case OUT_ROWS: call.add(&((phi::SelectedRows*)p)->value(), argument.form == OUT_ROWS);
    }
  }
  DenseTensor *param = nullptr, *master = nullptr;  // CPU kernels ignore the master: it becomes their parameter
  if (kernel.in_float32 && kernel.master) {
    auto* given = ((paddle::optional<DenseTensor>*)word(kernel.arguments[kernel.master]))->get_ptr();
    auto of_param = [](const Argument& argument) { return argument.form == OUT; };
    Word& out = word(*std::find_if(kernel.arguments.begin(), kernel.arguments.end(), of_param));
    if (given) param = (DenseTensor*)out, master = (DenseTensor*)(out = word(kernel.arguments.back())), word(kernel.arguments[0]) = (Word)given;
  }
  ((Function)kernel.function)(first[0], first[1], first[2], first[3], first[4], first[5], s, t, u, v, w, x, y, z, stack);
  if (master) param->ShareDataWith(*master);
}
static void launch_in_graph(const Native& kernel, phi::KernelContext* arguments) {
  Call call(kernel.in_float32);
  auto add = [&](const phi::TensorBase* tensor, bool is_output) {
    if (DenseTensor::classof(tensor)) call.add((const DenseTensor*)tensor, is_output);
    if (phi::SelectedRows::classof(tensor)) call.add(&((const phi::SelectedRows*)tensor)->value(), is_output);
  };
  for (size_t i = 0; i < arguments->InputsSize(); i++) if (auto* p = arguments->MutableInputAt(i)) add(p, false);
  for (size_t i = 0; i < arguments->OutputsSize(); i++) if (auto* p = arguments->MutableOutputAt(i)) add(p, true);
  arguments->SetDeviceContext(&context());
  kernel.original(arguments);
}

// ---- registration
static void* entry(const Native* kernel) {  // a function of its own for each kernel: notes the kernel, goes to `launch`
  static char* code = (char*)mmap(nullptr, 1 << 24, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* begin = code;
  auto add = [&](const std::string& bytes, auto value) {
    code = std::copy(bytes.begin(), bytes.end(), code);
    memcpy(code, &value, sizeof value), code += sizeof value;
  };
  add("\x49\xBA", kernel);                                                                     // r10 = kernel
  add("\x64\x4C\x89\x14\x25", int32_t((char*)&current - (char*)__builtin_thread_pointer()));   // current = r10
  add("\x49\xBB", (void*)launch), add("\x41\xFF", '\xE3');                                    // jump to launch
  return begin;
}
static bool describe(Native* kernel) {  // false: it has arguments of other kinds
  size_t word = 1, floats = 0;  // word 0 is the context
  auto& defs = kernel->original.args_def();
  auto add = [&](auto& of) {
    for (auto& def : of) kernel->arguments.push_back({forms.count(def.type_index) ? forms.at(def.type_index) : OTHER, word++});
  };
  add(defs.input_defs());
  for (auto& def : defs.attribute_defs())
    (def.type_index == phi::AttributeType::FLOAT32 || def.type_index == phi::AttributeType::FLOAT64 ? floats : word)++;
  add(defs.output_defs());
  auto is_other = [](auto& argument) { return argument.form == OTHER; };
  return kernel->function && floats <= 8 && word <= 66 && std::none_of(kernel->arguments.begin(), kernel->arguments.end(), is_other);
}
static void register_kernels() {
  const std::map<std::string, size_t> masters = {{"adamw", 8}, {"adam", 8}, {"momentum", 4}, {"sgd", 3}};
  const auto without = std::string(",") + (getenv("FAKE_WITHOUT") ? getenv("FAKE_WITHOUT") : "") + ",";
  const auto backend = phi::TransToPhiBackend(place());
  auto is_without = [&](const std::string& name) { return without.find("," + name + ",") != std::string::npos; };
  for (auto& [name, kernels] : phi::KernelFactory::Instance().kernels()) {
    std::vector<std::pair<phi::KernelKey, phi::Kernel>> added;
    const size_t master = masters.count(name) ? masters.at(name) : 0;
    auto add = [&, &name = name, &kernels = kernels](phi::KernelKey key, const phi::Kernel& original, DataType type) {
      if (kernels.count({phi::Backend::CUSTOM, phi::DataLayout::ALL_LAYOUT, type}) || (is_half(type) && is_without(name + "16"))) return;
      auto* native = new Native{original, original.GetVariadicKernelFn<void*>(), type != key.dtype(), master, {}};
      if (!describe(native)) return;
      phi::Kernel kernel([native](phi::KernelContext* arguments) { launch_in_graph(*native, arguments); }, entry(native));
      *kernel.mutable_args_def() = original.args_def();
      auto move = [&](auto& defs) { for (auto& def : defs) if (def.backend == phi::Backend::CPU) def.SetBackend(backend); };
      move(kernel.mutable_args_def()->input_defs()), move(kernel.mutable_args_def()->output_defs());
      if (name == "adam" || name == "adamw")  // the powers of the betas stay on the CPU, as with CUDA
        for (int i : {6, 7, 9}) kernel.InputAt(i).SetBackend(phi::Backend::ALL_BACKEND);
      added.emplace_back(phi::KernelKey(backend, key.layout(), type), kernel);
    };
    for (auto& [key, original] : kernels) {
      if (key.backend() != phi::Backend::CPU || is_without(name)) continue;
      if (!(master && is_half(key.dtype()))) add(key, original, key.dtype());
      for (auto half : {DataType::FLOAT16, DataType::BFLOAT16})
        if (key.dtype() == DataType::FLOAT32 && (master || !kernels.count({key.backend(), key.layout(), half}))) add(key, original, half);
    }
    for (auto& [key, kernel] : added) kernels[key] = kernel;
  }
}

// ---- several processes: they meet in a shared file
struct C_CCLComm_st {
  size_t ranks, rank;
  char* shared;
  long round = 0;
  static const size_t SLOT = 1UL << 30;
  char* slot(size_t of) { return shared + (of + 1) * SLOT; }  // of a rank, then of each pair of ranks
  std::atomic<long>& count(size_t of) { return ((std::atomic<long>*)shared)[of]; }
  size_t pair(size_t from, size_t to) { return ranks * (from + 1) + to; }
  void meet() {
    count(rank) = ++round;
    for (size_t i = 0; i < ranks; i++) while (count(i) < round) usleep(20);
  }
  C_Status pass(void* to, const void* from, size_t bytes, size_t of_pair, bool full) {
    while (count(of_pair) != full) usleep(20);
    memcpy(to, from, bytes), count(of_pair) = !full;
    return C_SUCCESS;
  }
  template <class Read> C_Status exchange(const void* mine, size_t bytes, Read read) {
    memcpy(slot(rank), open(mine), bytes), meet(), read(), meet();
    return C_SUCCESS;
  }
  template <class T> void reduce(T* to, size_t from, size_t count, C_CCLReduceOp op) {
    for (size_t i = from; i < from + count; i++) {
      T all = ((T*)slot(0))[i];
      for (size_t r = 1; r < ranks; r++) {
        T one = ((T*)slot(r))[i];
        all = op == MAX ? std::max(all, one) : op == MIN ? std::min(all, one) : op == PRODUCT ? T(all * one) : T(all + one);
      }
      to[i - from] = op == AVG ? T(all / T(ranks)) : all;
    }
  }
  void reduce(void* to, size_t from, size_t count, C_DataType type, C_CCLReduceOp op) {
    to = open(to);
    switch (type) {
      case FLOAT32: return reduce((float*)to, from, count, op);
      case FLOAT64: return reduce((double*)to, from, count, op);
      case FLOAT16: return reduce((phi::dtype::float16*)to, from, count, op);
      case BFLOAT16: return reduce((phi::dtype::bfloat16*)to, from, count, op);
      case INT32: return reduce((int32_t*)to, from, count, op);
      case INT64: return reduce((int64_t*)to, from, count, op);
      default: return reduce((uint8_t*)to, from, count, op);
    }
  }
};
static size_t size_of(C_DataType type) {
  return type == FLOAT64 || type == INT64 ? 8 : type == FLOAT32 || type == INT32 ? 4 : type == FLOAT16 || type == BFLOAT16 ? 2 : 1;
}
static std::string path(C_CCLRootId* id) { return "/dev/shm/fake-" + std::to_string(*(long*)id->data); }
static void add_collectives(C_DeviceInterface* i) {
  i->xccl_get_unique_id_size = [](size_t* n) { return *n = sizeof(long), C_SUCCESS; };
  i->xccl_get_unique_id = [](C_CCLRootId* id) {
    static long made;
    *(long*)id->data = getpid() * 1000L + made++;
    close(::open(path(id).c_str(), O_CREAT | O_RDWR, 0600));
    return C_SUCCESS;
  };
  i->xccl_comm_init_rank = [](size_t ranks, C_CCLRootId* id, size_t rank, C_CCLComm* comm) {
    const int shared = ::open(path(id).c_str(), O_RDWR);
    const size_t size = (ranks * ranks + ranks + 1) * C_CCLComm_st::SLOT;
    if (shared < 0 || ftruncate(shared, size)) return C_FAILED;
    *comm = new C_CCLComm_st{ranks, rank, (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0)};
    close(shared), (*comm)->meet(), unlink(path(id).c_str());
    return C_SUCCESS;
  };
  i->xccl_destroy_comm = [](C_CCLComm) { return C_SUCCESS; };
  i->xccl_group_start = i->xccl_group_end = [] { return C_SUCCESS; };
  i->xccl_all_reduce = [](void* from, void* to, size_t n, C_DataType type, C_CCLReduceOp op, C_CCLComm c, C_Stream) {
    return c->exchange(from, n * size_of(type), [&] { c->reduce(to, 0, n, type, op); });
  };
  i->xccl_reduce = [](void* from, void* to, size_t n, C_DataType type, C_CCLReduceOp op, size_t root, C_CCLComm c, C_Stream) {
    return c->exchange(from, n * size_of(type), [&] { if (c->rank == root) c->reduce(to, 0, n, type, op); });
  };
  i->xccl_reduce_scatter = [](void* from, void* to, size_t n, C_DataType type, C_CCLReduceOp op, C_CCLComm c, C_Stream) {
    return c->exchange(from, n * size_of(type) * c->ranks, [&] { c->reduce(to, c->rank * n, n, type, op); });
  };
  i->xccl_broadcast = [](void* buffer, size_t n, C_DataType type, size_t root, C_CCLComm c, C_Stream) {
    return c->exchange(buffer, n * size_of(type), [&] { memcpy(open(buffer), c->slot(root), n * size_of(type)); });
  };
  i->xccl_all_gather = [](void* from, void* to, size_t n, C_DataType type, C_CCLComm c, C_Stream) {
    const size_t bytes = n * size_of(type);
    return c->exchange(from, bytes, [&] { for (size_t r = 0; r < c->ranks; r++) memcpy((char*)open(to) + r * bytes, c->slot(r), bytes); });
  };
  i->xccl_send = [](void* from, size_t n, C_DataType type, size_t to, C_CCLComm c, C_Stream) {
    const size_t pair = c->pair(c->rank, to);
    return c->pass(c->slot(pair), open(from), n * size_of(type), pair, false);
  };
  i->xccl_recv = [](void* to, size_t n, C_DataType type, size_t from, C_CCLComm c, C_Stream) {
    const size_t pair = c->pair(from, c->rank);
    return c->pass(open(to), c->slot(pair), n * size_of(type), pair, true);
  };
}

// ---- the device
#define COPY(kind) \
  i->memory_copy_##kind = [](const C_Device, void* to, const void* from, size_t n) { return copy(kind, to, from, n); }; \
  i->async_memory_copy_##kind = [](const C_Device, C_Stream, void* to, const void* from, size_t n) { return copy(kind, to, from, n); };
#define PUBLIC extern "C" __attribute__((visibility("default")))

PUBLIC void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  static char type[] = "fake", version[] = "1";
  params->device_type = type, params->sub_device_type = version;
  auto* i = (C_DeviceInterface*)memset((void*)params->interface, 0, sizeof(C_DeviceInterface));
  i->size = sizeof *i;
  COPY(h2d) COPY(d2h) COPY(d2d)
  i->device_memory_allocate = [](const C_Device, void** p, size_t n) { return *p = allocate(n), C_SUCCESS; };
  i->device_memory_deallocate = [](const C_Device, void* p, size_t n) { return release(p, n), C_SUCCESS; };
  i->device_memory_set = [](const C_Device, void* p, unsigned char value, size_t n) { return memset(open(p), value, n), C_SUCCESS; };
  i->host_memory_allocate = i->unified_memory_allocate = [](const C_Device, void** p, size_t n) { return *p = malloc(n), C_SUCCESS; };
  i->host_memory_deallocate = i->unified_memory_deallocate = [](const C_Device, void* p, size_t) { return free(p), C_SUCCESS; };
  i->initialize = i->finalize = [] { return C_SUCCESS; };
  i->init_device = i->deinit_device = [](const C_Device) { return C_SUCCESS; };
  i->set_device = [](const C_Device d) { return device = d->id, C_SUCCESS; };
  i->get_device = [](const C_Device d) { return d->id = device, C_SUCCESS; };
  i->create_stream = [](const C_Device, C_Stream* s) { return *s = nullptr, C_SUCCESS; };
  i->destroy_stream = [](const C_Device, C_Stream) { return C_SUCCESS; };
  i->create_event = [](const C_Device, C_Event* e) { return *e = nullptr, C_SUCCESS; };
  i->destroy_event = i->synchronize_event = [](const C_Device, C_Event) { return C_SUCCESS; };
  i->record_event = i->stream_wait_event = [](const C_Device, C_Stream, C_Event) { return C_SUCCESS; };
  i->synchronize_device = [](const C_Device) { return syncs++, C_SUCCESS; };
  i->synchronize_stream = [](const C_Device, C_Stream) { return syncs++, C_SUCCESS; };
  i->get_device_count = [](size_t* n) { return *n = 4, C_SUCCESS; };
  i->get_device_list = [](size_t* ids) { return std::iota(ids, ids + 4, 0), C_SUCCESS; };
  i->device_memory_stats = [](const C_Device, size_t* all, size_t* free) { return *all = SPACE, *free = SPACE - used, C_SUCCESS; };
  i->device_min_chunk_size = i->get_compute_capability = i->get_runtime_version = i->get_driver_version =
      [](const C_Device, size_t* n) { return *n = 1, C_SUCCESS; };
  add_collectives(i);
  register_kernels();
}
PUBLIC void fake_counts(long* n) {  // five numbers
  for (auto* counter : {&h2d, &d2h, &d2d, &syncs, &launches}) *n++ = *counter;
}
