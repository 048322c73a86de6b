// Buffers of the threads that evaluate plans, kept from one batch to the next.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "simulator/contraction.hpp"
#include "simulator/event_kernel.hpp"
#include "simulator/lane_kernel.hpp"
#include "problem_layout.hpp"

namespace placewright {

// One thread's buffers for plans with fused groups.
struct FusedWorkspace {
  FusedWorkspace(const ProblemLayout& layout, const FusedParts& parts)
      : contraction(layout, parts), event(contraction.layout()) {}
  Contraction contraction;
  EventKernel event;
};

// One thread's buffers for plans.
struct KernelWorkspace {
  explicit KernelWorkspace(const ProblemLayout& layout) : event(layout) {}
  EventKernel event;
  Period period;
  std::unique_ptr<FusedWorkspace> fused;  // made when first needed
  std::unique_ptr<LaneKernel> lanes;      // likewise
};

class WorkspacePool {
 public:
  explicit WorkspacePool(const ProblemLayout& layout) : layout_(layout) {}

  std::unique_ptr<KernelWorkspace> acquire() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!workspaces_.empty()) {
        std::unique_ptr<KernelWorkspace> workspace = std::move(workspaces_.back());
        workspaces_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<KernelWorkspace>(layout_);
  }

  void recycle(std::unique_ptr<KernelWorkspace> workspace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    workspaces_.push_back(std::move(workspace));
  }

 private:
  const ProblemLayout& layout_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<KernelWorkspace>> workspaces_;
};

}  // namespace placewright
